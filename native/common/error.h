// The one exception type of the native code; bindings/ turns it into edge_infer.errors by code.
#pragma once
#include <stdexcept>
#include <string>
#include <utility>

namespace ei {

class Error : public std::runtime_error {
 public:
  Error(std::string code, const std::string& message)
      : std::runtime_error(message), code_(std::move(code)) {}
  const std::string& code() const { return code_; }

 private:
  std::string code_;
};

}  // namespace ei
