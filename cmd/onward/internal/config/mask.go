package config

import (
	"net/url"
	"regexp"
	"strings"
)

var (
	userInfo     = regexp.MustCompile(`(://)[^/?#\s]*@`)
	anyInfo      = regexp.MustCompile(`(://).*@`) // where it ends is not known
	secretInText = regexp.MustCompile(`(?i)((?:password|passphrase|secret|token)[a-z]*=)[^&\s]+`)
)

// MaskURL replaces what may be secret in a URL, or in several with commas between them: the user's part, since a token
// may stand there alone, and values of parameters that are called password or the like. A user's name before a password
// stays, because people need it.
func MaskURL(text string) string {
	var urls []string
	for part := range strings.SplitSeq(text, ",") {
		if len(urls) > 0 && !strings.Contains(part, "://") { // a further host, or the rest of a password
			urls[len(urls)-1] += "," + part
		} else {
			urls = append(urls, part)
		}
	}
	for i, one := range urls {
		urls[i] = maskOne(one)
	}
	return strings.Join(urls, ",")
}

func maskOne(text string) string {
	user, where := "***", userInfo
	u, err := url.Parse(strings.TrimSpace(text))
	if err != nil {
		where = anyInfo
	} else if _, hasPassword := u.User.Password(); hasPassword {
		user = url.User(u.User.Username()).String() + ":***"
	}
	text = where.ReplaceAllString(text, "${1}"+strings.ReplaceAll(user, "$", "$$")+"@")
	return secretInText.ReplaceAllString(text, "${1}***")
}
