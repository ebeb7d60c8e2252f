"""The report as one HTML file: its page, its tables and its pictures; what they say of runs is found out elsewhere."""
