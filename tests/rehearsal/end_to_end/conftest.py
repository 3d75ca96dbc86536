from user_project import project

__all__ = ["project"]
