// SPDX-License-Identifier: Apache-2.0
//go:build linux && cgo && (amd64 || arm64)

#include "../runtime/frames.c"
