package rows

import "github.com/unspool/unspool/arch"

// A Function is a range of code as the source of its rows names it, with what handles exceptions there. A function of several parts has
// several. Addresses are link-time addresses.
type Function struct {
	Lo, Hi arch.Vaddr // Lo is the start that the LSDA counts from, unless it names its own

	Personality arch.Vaddr // of the handler, or of a word that holds its address; 0 for none
	Indirect    bool       // Personality is the word's address
	LSDA        arch.Vaddr // of the language-specific data
	HasLSDA     bool
}
