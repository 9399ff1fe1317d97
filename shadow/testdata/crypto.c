// Runs OpenSSL's algorithms named by its arguments: digests, ciphers, "modexp", "rsa", "P-256" and other curves, "ED25519". It needs no
// headers of OpenSSL.
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

typedef void *P;
#define F(r, name, ...) static r (*name)(__VA_ARGS__)
F(const P, EVP_get_digestbyname, const char *);
F(const P, EVP_get_cipherbyname, const char *);
F(P, EVP_MD_CTX_new, void);
F(int, EVP_DigestInit_ex, P, const P, P);
F(int, EVP_DigestUpdate, P, const void *, size_t);
F(int, EVP_DigestFinal_ex, P, void *, unsigned *);
F(P, EVP_CIPHER_CTX_new, void);
F(int, EVP_CipherInit_ex, P, const P, P, const void *, const void *, int);
F(int, EVP_CipherUpdate, P, void *, int *, const void *, int);
F(int, EVP_CipherFinal_ex, P, void *, int *);
F(P, EVP_PKEY_Q_keygen, P, const char *, const char *, ...);
F(int, EVP_DigestSignInit, P, P *, const P, P, P);
F(int, EVP_DigestSign, P, void *, size_t *, const void *, size_t);
F(P, BN_new, void);
F(P, BN_CTX_new, void);
F(int, BN_rand, P, int, int, int);
F(int, BN_mod_exp_mont_consttime, P, P, P, P, P, P);

static unsigned char in[4096], out[8192], key[64] = {1}, iv[64] = {2};

static void digest(const P md) {
	for (int size = 100; size < 2000; size *= 7) {
		unsigned n;
		P c = EVP_MD_CTX_new();
		EVP_DigestInit_ex(c, md, 0);
		EVP_DigestUpdate(c, in, size);
		EVP_DigestFinal_ex(c, out, &n);
	}
}

static void cipher(const P ci) {
	for (int encrypt = 0; encrypt < 2; encrypt++) {
		int n;
		P c = EVP_CIPHER_CTX_new();
		EVP_CipherInit_ex(c, ci, 0, key, iv, encrypt);
		EVP_CipherUpdate(c, out, &n, in, 1024);
		EVP_CipherUpdate(c, out, &n, in, 80);
		EVP_CipherFinal_ex(c, out, &n);
	}
}

static void modexp(void) {
	P ctx = BN_CTX_new();
	for (int bits = 512; bits <= 1024; bits *= 2) {
		P r = BN_new(), a = BN_new(), p = BN_new(), m = BN_new();
		BN_rand(a, bits - 1, 0, 0), BN_rand(p, 64, 0, 0), BN_rand(m, bits, 0, 1);
		BN_mod_exp_mont_consttime(r, a, p, m, ctx, 0);
	}
}

static void sign(P k, const P md) {
	size_t n = sizeof out;
	P c = EVP_MD_CTX_new();
	EVP_DigestSignInit(c, 0, md, 0, k);
	EVP_DigestSign(c, out, &n, in, 100);
}

int main(int argc, char **argv) {
	void *h = dlopen("libcrypto.so.3", RTLD_LAZY);
	if (!h) return 1;
#define L(name) name = dlsym(h, #name)
	L(EVP_get_digestbyname), L(EVP_get_cipherbyname), L(EVP_MD_CTX_new), L(EVP_DigestInit_ex), L(EVP_DigestUpdate), L(EVP_DigestFinal_ex);
	L(EVP_CIPHER_CTX_new), L(EVP_CipherInit_ex), L(EVP_CipherUpdate), L(EVP_CipherFinal_ex), L(EVP_PKEY_Q_keygen), L(EVP_DigestSignInit), L(EVP_DigestSign);
	L(BN_new), L(BN_CTX_new), L(BN_rand), L(BN_mod_exp_mont_consttime);
	for (int i = 1; i < argc; i++) {
		const char *what = argv[i];
		const P md = EVP_get_digestbyname(what), ci = EVP_get_cipherbyname(what);
		if (md) digest(md);
		if (ci) cipher(ci);
		if (!strcmp(what, "modexp")) modexp();
		if (!strcmp(what, "rsa")) sign(EVP_PKEY_Q_keygen(0, 0, "RSA", (size_t)1024), EVP_get_digestbyname("SHA256"));
		if (!strncmp(what, "P-", 2)) sign(EVP_PKEY_Q_keygen(0, 0, "EC", what), EVP_get_digestbyname("SHA256"));
		if (!strcmp(what, "ED25519")) sign(EVP_PKEY_Q_keygen(0, 0, "ED25519"), 0);
		puts(what);
	}
}
