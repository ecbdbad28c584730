#include <c10/util/Exception.h>

#include "python/bindings.h"

namespace torchamp::python {
namespace {

void raise(PyObject* type, const c10::Error& error) {
  PyErr_SetString(type, error.what_without_backtrace());
}

void translate(std::exception_ptr pending) {
  try {
    if (pending) std::rethrow_exception(pending);
  } catch (const c10::ValueError& error) {
    raise(PyExc_ValueError, error);
  } catch (const c10::TypeError& error) {
    raise(PyExc_TypeError, error);
  } catch (const c10::IndexError& error) {
    raise(PyExc_IndexError, error);
  } catch (const c10::NotImplementedError& error) {
    raise(PyExc_NotImplementedError, error);
  } catch (const c10::Error& error) {
    raise(PyExc_RuntimeError, error);
  }
}

}  // namespace

void translate_errors() {
  pybind11::register_local_exception_translator(&translate);
}

}  // namespace torchamp::python
