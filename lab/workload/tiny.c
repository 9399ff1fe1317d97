/* tiny.c - a short life: some work at a depth of ten, and the end. */
static volatile unsigned long sum;

__attribute__((noinline)) static void down(int n)
{
	volatile char frame[48];

	frame[0] = (char)n;
	if (n > 0)
		down(n - 1);
	else
		for (int i = 0; i < 300000; i++)
			sum += (unsigned long)i;
	sum += (unsigned long)frame[0];
}

int main(void)
{
	down(10);
	return 0;
}
