"""What the site shows that nobody writes by hand: the command's options, the recipes, the datasets' cards."""
