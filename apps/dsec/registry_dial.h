// How pulls reach a registry that the operator allows.
#pragma once

#include "base/clock.h"
#include "base/result.h"
#include "image/registry_reference.h"
#include "sys/fd.h"

namespace dsec {

// Blocks. An address is dialled as it is named; a name may lead to public and private
// addresses and to no other: not to the node itself, nor to where clouds hand out
// its credentials.
Result<sys::Fd> dial_registry(const image::AllowedRegistry& host, Deadline by);

}  // namespace dsec
