#pragma once

namespace torchamp::python {

/// Makes errors of torchamp's functions the Python exceptions that torch's own functions raise
/// (ValueError, TypeError, …), with the message alone and no C++ backtrace.
void translate_errors();

}  // namespace torchamp::python
