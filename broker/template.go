package broker

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/template"
	"text/template/parse"
	"unicode/utf8"

	"github.com/onwardhq/onward/outbox"
)

// Template makes a name at the broker (a topic, a subject, a key, an exchange) from a message. It is safe for concurrent
// use.
type Template struct {
	text  string
	parts []part // the whole of it, where it is texts and fields alone
	full  *template.Template
}

// part is a text as it is, or a field of the message.
type part struct {
	text  string
	field func(m *outbox.Message) string
}

// templateFields are what a template can name beside Headers.
var templateFields = map[string]func(m *outbox.Message) string{
	"ID":            func(m *outbox.Message) string { return m.ID.String() },
	"Topic":         func(m *outbox.Message) string { return m.Topic },
	"Key":           func(m *outbox.Message) string { return m.Key },
	"Type":          func(m *outbox.Message) string { return m.Type },
	"ContentType":   func(m *outbox.Message) string { return m.ContentType },
	"Scope":         func(m *outbox.Message) string { return m.Scope },
	"CorrelationID": func(m *outbox.Message) string { return m.CorrelationID },
	"CausationID":   func(m *outbox.Message) string { return m.CausationID },
	"AggregateType": func(m *outbox.Message) string { return m.AggregateType },
	"AggregateID":   func(m *outbox.Message) string { return m.AggregateID },
	"EventID":       func(m *outbox.Message) string { return m.EventID },
}

// templateData is the message as a template sees it.
type templateData struct {
	ID, Topic, Key, Type, ContentType, Scope, CorrelationID, CausationID, AggregateType, AggregateID, EventID string

	Headers map[string]string
}

func dataOf(m *outbox.Message) *templateData {
	return &templateData{
		m.ID.String(), m.Topic, m.Key, m.Type, m.ContentType, m.Scope, m.CorrelationID, m.CausationID, m.AggregateType, m.AggregateID, m.EventID,
		m.Headers,
	}
}

// templateFuncs are what a template has beside text/template's own functions.
var templateFuncs = template.FuncMap{
	"lower":   strings.ToLower,
	"upper":   strings.ToUpper,
	"replace": func(from, to, text string) string { return strings.ReplaceAll(text, from, to) },
}

// maxName is the longest name that a template may give, in bytes; brokers may take less.
const maxName = 1024

// ParseTemplate reads a template in the language of text/template. It names the message's fields: {{.Topic}} {{.Key}}
// {{.Type}} {{.ID}} {{.ContentType}} {{.Scope}} {{.CorrelationID}} {{.CausationID}} {{.AggregateType}} {{.AggregateID}}
// {{.EventID}}, and its own headers: {{.Headers.region}}, without which the template fails for the message, or
// {{index .Headers "x-region"}}, which is empty then. Functions beside those of text/template: lower, upper, and
// replace FROM TO TEXT.
//
// The template is tried on a sample message. What is wrong with it is outbox.ErrConfigInvalid.
func ParseTemplate(text string) (*Template, error) {
	if fault := checkTemplate(text, false); fault != "" {
		return nil, &outbox.Error{Code: outbox.ErrConfigInvalid.Code, Op: "template", Detail: fmt.Sprintf("%q %s", text, fault)}
	}
	return parseTemplate(text)
}

func plainTemplate(field string) *Template {
	return &Template{text: "{{." + field + "}}", parts: []part{{field: templateFields[field]}}}
}

func parseTemplate(text string) (*Template, error) {
	full, err := template.New("").Option("missingkey=error").Funcs(templateFuncs).Parse(text)
	if err != nil {
		return nil, err
	}
	t := &Template{text: text, full: full}
	if full.Tree == nil || full.Root == nil {
		return t, nil
	}
	var parts []part
	for _, n := range full.Root.Nodes {
		p, ok := plainPart(n)
		if !ok {
			return t, nil
		}
		parts = append(parts, p)
	}
	t.parts = parts
	return t, nil
}

// plainPart is a node that is a text, or a field and nothing else.
func plainPart(n parse.Node) (part, bool) {
	switch n := n.(type) {
	case *parse.TextNode:
		return part{text: string(n.Text)}, true
	case *parse.ActionNode:
		if len(n.Pipe.Decl) > 0 || len(n.Pipe.Cmds) != 1 || len(n.Pipe.Cmds[0].Args) != 1 {
			return part{}, false
		}
		if f, ok := n.Pipe.Cmds[0].Args[0].(*parse.FieldNode); ok && len(f.Ident) == 1 && templateFields[f.Ident[0]] != nil {
			return part{field: templateFields[f.Ident[0]]}, true
		}
	}
	return part{}, false
}

// Expand makes the name for a message. An error is CodeTemplateFailed: it fails for this message, or what it gives is
// longer than 1,024 bytes, has control characters or is not valid UTF-8. A name may be empty.
func (t *Template) Expand(e *Envelope) (string, error) {
	if len(t.parts) == 1 { // checked when the message was written, or the template read
		if p := t.parts[0]; p.field != nil {
			return p.field(&e.Record.Message), nil
		}
		return t.parts[0].text, nil
	}
	name, err := t.expand(&e.Record.Message)
	if err != nil {
		return "", t.fault("it fails for this message", err)
	}
	if fault := nameFault(name); fault != "" {
		return "", t.fault("it gives a name that "+fault, nil)
	}
	return name, nil
}

func (t *Template) expand(m *outbox.Message) (string, error) {
	b := make(bounded, 0, 64)
	if t.parts == nil {
		err := t.full.Execute(&b, dataOf(m))
		return string(b), err
	}
	for _, p := range t.parts {
		if p.field != nil {
			p.text = p.field(m)
		}
		b = append(b, p.text...)
	}
	return string(b), nil
}

// bounded is a text that a template writes: no longer than a few names.
type bounded []byte

var errTooLong = errors.New("the name is too long")

func (b *bounded) Write(p []byte) (int, error) {
	if len(*b)+len(p) > 4*maxName {
		return 0, errTooLong
	}
	*b = append(*b, p...)
	return len(p), nil
}

func (t *Template) fault(detail string, cause error) error {
	return &outbox.Error{
		Code: CodeTemplateFailed, Op: "template " + t.text, Detail: detail, Err: cause,
		Hint: "mend the template, or the message, and requeue it",
	}
}

// nameFault says why a text is no name at any broker.
func nameFault(name string) string {
	if len(name) > maxName {
		return fmt.Sprintf("has %d bytes, the most is %d", len(name), maxName)
	}
	if !utf8.ValidString(name) {
		return "is not valid UTF-8"
	}
	for i := range len(name) {
		if name[i] < ' ' || name[i] == 0x7f {
			return "has control characters"
		}
	}
	return ""
}

// checkTemplate says what is wrong with a template, or nothing. needed: it must not give an empty name.
func checkTemplate(text string, needed bool) string {
	t, err := parseTemplate(text)
	if err != nil {
		return "cannot be read: " + strings.TrimPrefix(err.Error(), "template: ")
	}
	if len(t.full.Templates()) > 1 {
		return "defines another template: write it out"
	}
	sample := templateSample()
	if t.full.Tree != nil && t.full.Root != nil {
		w := walk{headers: sample.Headers}
		w.node(t.full.Root, true)
		if w.fault != "" {
			return w.fault
		}
	}
	name, err := t.expand(sample)
	if err != nil {
		return "fails for a sample message: " + strings.TrimPrefix(err.Error(), "template: ")
	}
	if fault := nameFault(name); fault != "" {
		return "gives a name that " + fault + " for a sample message"
	}
	if needed && name == "" {
		return "gives an empty name for a sample message"
	}
	return ""
}

// templateSample is the message that templates are tried on.
func templateSample() *outbox.Message {
	return &outbox.Message{
		ID: outbox.IDFrom("sample", "message"), Topic: "orders.paid", Key: "order-4711", Type: "OrderPaid", ContentType: "application/json", Scope: "tenant",
		CorrelationID: "correlation", CausationID: "causation", AggregateType: "order", AggregateID: "4711", EventID: "event-4711",
		Headers: map[string]string{},
	}
}

// walk looks at all of a template, also at what the sample message does not reach. Headers that it names are added to the
// sample.
type walk struct {
	headers map[string]string
	fault   string
}

// node looks at a node and those below. root: the dot is the message.
func (w *walk) node(n parse.Node, root bool) {
	switch n := n.(type) {
	case *parse.ListNode:
		for _, below := range n.Nodes {
			w.node(below, root)
		}
	case *parse.ActionNode:
		w.node(n.Pipe, root)
	case *parse.IfNode:
		w.branch(&n.BranchNode, root, root)
	case *parse.WithNode:
		w.branch(&n.BranchNode, root, false)
	case *parse.RangeNode:
		w.branch(&n.BranchNode, root, false)
	case *parse.PipeNode:
		for _, c := range n.Cmds {
			for _, arg := range c.Args {
				w.node(arg, root)
			}
		}
	case *parse.ChainNode:
		w.node(n.Node, root)
	case *parse.StringNode:
		w.headers[n.Text] = "sample"
	case *parse.FieldNode:
		if root {
			w.field(n.Ident)
		}
	case *parse.VariableNode:
		if n.Ident[0] == "$" && len(n.Ident) > 1 {
			w.field(n.Ident[1:])
		}
	}
}

func (w *walk) branch(n *parse.BranchNode, root, inside bool) {
	w.node(n.Pipe, root)
	w.node(n.List, inside)
	if n.ElseList != nil {
		w.node(n.ElseList, root)
	}
}

// field checks a field's name.
func (w *walk) field(ident []string) {
	switch {
	case ident[0] == "Headers" && len(ident) == 2:
		w.headers[ident[1]] = "sample"
	case ident[0] == "Headers" && len(ident) == 1, templateFields[ident[0]] != nil && len(ident) == 1:
	default:
		w.fault = fmt.Sprintf("names %s, which a message does not have: known are .%s and .Headers.NAME",
			"."+strings.Join(ident, "."), strings.Join(slices.Sorted(maps.Keys(templateFields)), ", ."))
	}
}
