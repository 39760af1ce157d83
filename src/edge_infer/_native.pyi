# The module is compiled (native/bindings); its functions are documented there.
from typing import Any

def __getattr__(name: str) -> Any: ...
