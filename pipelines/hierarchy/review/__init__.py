"""Review of groups: people's decisions about names and groups, their files, the stage that applies them, the page."""
