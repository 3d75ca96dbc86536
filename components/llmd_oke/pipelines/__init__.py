"""What continuous integration does with stacks: changes of pull requests, promotion of merges, news of nights."""
