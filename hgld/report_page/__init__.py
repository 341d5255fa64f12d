"""The report page of ``hgld report``: results of several runs in one self-contained HTML file."""
