"""What `import capplan` offers: one function for each question, with results that become data frames."""
