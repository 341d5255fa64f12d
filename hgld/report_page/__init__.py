"""The report page of ``hgld report``: results of several runs as one HTML file that needs nothing else."""
