// Who vouches for a layer: a builder's Ed25519 key signs the digest of the
// layer's metadata, which names its data files by their digests. The signature
// is detached, so that equal content keeps one digest whoever built it.
//
// Keys are PEM, as `openssl genpkey -algorithm ed25519` and `openssl pkey
// -pubout` write them. What is signed is "dsec layer v1\n" and the digest
// ("sha256:" and 64 hex digits), so that a signature of these keys made for
// anything else is none for a layer. The signature is 64 bytes, as base64 text.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace dsec::model {

// kInvalidArgument for what is no Ed25519 private key or no digest.
Result<std::string> sign_layer(std::string_view private_key_pem, std::string_view digest);
// kInvalidArgument for what is no Ed25519 public key, digest or signature;
// kPermissionDenied for a signature that this key did not make for this digest.
Result<void> check_layer_signature(std::string_view public_key_pem, std::string_view digest, std::string_view signature);
// The same for the manifest of a layer in a shared store (origin/manifest.h), by
// the SHA-256 of its bytes: what is signed is "dsec manifest v1\n" and that digest.
Result<std::string> sign_manifest(std::string_view private_key_pem, std::string_view digest);
Result<void> check_manifest_signature(std::string_view public_key_pem, std::string_view digest, std::string_view signature);

// A new private key, and the public one of a private key; both as PEM.
std::string make_builder_key();
Result<std::string> public_builder_key(std::string_view private_key_pem);
// The PEM public keys of a file, one behind the other. kInvalidArgument when one
// of them is no Ed25519 key, or there is none.
Result<std::vector<std::string>> split_public_keys(std::string_view text);

}  // namespace dsec::model
