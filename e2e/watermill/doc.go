// Package watermill tests broker/watermill with what its own module does without: a publisher of Watermill that has a server, and
// the databases whose transactions it writes in.
package watermill
