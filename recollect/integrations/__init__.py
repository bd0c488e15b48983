"""Other people's frameworks: from the choice to the loss, the weight arrives. Each is an extra, imported when used."""
