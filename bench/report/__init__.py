"""Records to numbers, tables, figures and one page. No torch."""
