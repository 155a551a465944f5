// Error reports: a code for programs, a message for people. Code in csrc never throws to its
// callers, prints or aborts.
#pragma once

#include <string>
#include <utility>

namespace gradcomp {

// The numbers are part of the C ABI (gradcomp.h).
enum class Code : int {
  kOk = 0,
  kSpec = 1,      // a spec string is wrong
  kWire = 2,      // received bytes are not a valid frame or payload
  kCapacity = 3,  // a buffer is too small, a tensor too large, or memory ran out
  kArgument = 4,  // the caller broke the contract of a call
};

class [[nodiscard]] Status {
 public:
  Status() noexcept = default;
  Status(Code code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const noexcept { return code_ == Code::kOk; }
  Code code() const noexcept { return code_; }
  const std::string& message() const noexcept { return message_; }

 private:
  Code code_ = Code::kOk;
  std::string message_;
};

inline Status wire_error(std::string message) { return {Code::kWire, std::move(message)}; }
inline Status capacity_error(std::string message) { return {Code::kCapacity, std::move(message)}; }
inline Status argument_error(std::string message) { return {Code::kArgument, std::move(message)}; }

}  // namespace gradcomp

// Leaves the enclosing function with the Status of `expr` unless it is ok.
#define GRADCOMP_TRY(expr)                     \
  do {                                         \
    ::gradcomp::Status try_status_ = (expr);   \
    if (!try_status_.ok()) return try_status_; \
  } while (false)
