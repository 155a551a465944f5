"""Time of whole steps on slow links, with this project's compressors and with others."""
