//go:build !plain

package main

import _ "github.com/unspool/unspool/cgotraceback"
