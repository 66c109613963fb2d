package harness

import "testing"

// Servers that are made side by side do not get the same port, though none of them listens yet.
func TestAPortIsGivenOutOnce(t *testing.T) {
	t.Parallel()
	seen := map[int]bool{}
	for range 20 {
		port, err := freePort()
		if err != nil {
			t.Fatal(err)
		}
		if seen[port] {
			t.Fatalf("port %d was given out twice", port)
		}
		seen[port] = true
	}
}
