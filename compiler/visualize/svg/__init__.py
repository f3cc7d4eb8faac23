"""Drawing of views and charts as SVG."""
