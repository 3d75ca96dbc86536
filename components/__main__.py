"""Entry point of the component package: Pulumi runs `python components <engine address>`."""

from llmd_oke.package import serve

if __name__ == "__main__":
    serve()
