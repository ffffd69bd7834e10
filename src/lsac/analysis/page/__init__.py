"""The report as one HTML page that opens offline: curves drawn by Plotly, tables, and how each number was made."""
