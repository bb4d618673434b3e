#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace braid {

/// Runs `call`, which must throw `ErrorType` with a message of one line, and returns the message.
template <class ErrorType, class Call>
std::string message_of(Call&& call) {
  try {
    call();
  } catch (const ErrorType& error) {
    const std::string message = error.what();
    EXPECT_THAT(message, ::testing::Not(::testing::IsEmpty()));
    EXPECT_EQ(message.find('\n'), std::string::npos) << "not one line: " << message;
    return message;
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

}  // namespace braid
