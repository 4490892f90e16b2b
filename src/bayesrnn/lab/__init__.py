"""The lab: recipes, runs, reports and the `bayesrnn` command. Imports the library, never the reverse."""
