"""What a whole step takes on slow links, with this project's compressors and with others."""
