"""Wrong labels found: images, classes and copies across splits that are probably not what their labels say."""

from hgld.audit.audit import Audit, AuditOptions, audit

__all__ = ["Audit", "AuditOptions", "audit"]
