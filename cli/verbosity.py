"""How much the command says on standard error."""


def quiet() -> bool:
    """Whether standard error is for errors and warnings alone."""
    return False
