package report

import "testing"

func flameData(t testing.TB, b []byte) []byte { return nil }

func countsOfFlame(t *testing.T, b []byte) counts { return nil }
