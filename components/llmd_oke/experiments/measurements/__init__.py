"""The program that measures one deployment of a run, and the files that it leaves."""
