package config

import (
	"net/url"
	"regexp"
	"strings"
)

var (
	userInfo     = regexp.MustCompile(`(://)[^/@\s]*@`)
	secretInText = regexp.MustCompile(`(?i)((?:password|passphrase|secret|token)[a-z]*=)[^&\s]+`)
)

// MaskURL replaces what may be secret in a URL, or in several with commas between them: the user's part, since a token
// may stand there alone, and values of parameters that are called password or the like. A user's name before a password
// stays, because people need it.
func MaskURL(text string) string {
	parts := strings.Split(text, ",")
	for i, one := range parts {
		parts[i] = maskOne(one)
	}
	return strings.Join(parts, ",")
}

func maskOne(text string) string {
	user := "***"
	if u, err := url.Parse(strings.TrimSpace(text)); err == nil && u.User != nil {
		if _, hasPassword := u.User.Password(); hasPassword {
			user = url.User(u.User.Username()).String() + ":***"
		}
	}
	text = userInfo.ReplaceAllString(text, "${1}"+strings.ReplaceAll(user, "$", "$$")+"@")
	return secretInText.ReplaceAllString(text, "${1}***")
}
