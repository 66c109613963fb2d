// Command order asks the service for an order, or pays for one, and prints its answer. It is what curl would do:
//
//	curl -i localhost:8080/orders -d '{"customer": "ada", "total_cents": 1250}'
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strings"
)

func main() {
	service := flag.String("service", "http://localhost:8080", "address of the service")
	customer := flag.String("customer", "ada", "who orders")
	cents := flag.Int64("total-cents", 1250, "for how much")
	pay := flag.String("pay", "", "pay for the order with this id, instead of a new one")
	flag.Parse()
	if err := order(context.Background(), os.Stdout, *service, *customer, *cents, *pay); err != nil {
		slog.Error("nothing changed", "error", err)
		os.Exit(1)
	}
}

func order(ctx context.Context, out io.Writer, service, customer string, cents int64, pay string) error {
	path, body := "/orders", ""
	if pay != "" {
		path += "/" + pay + "/pay"
	} else {
		text, err := json.Marshal(map[string]any{"customer": customer, "total_cents": cents})
		if err != nil {
			return err
		}
		body = string(text)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, service+path, strings.NewReader(body))
	if err != nil {
		return err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return fmt.Errorf("does the service run? %w", err)
	}
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return err
	}
	head := answer.Status + "\n"
	if receipt := answer.Header.Get("Onward-Receipt"); receipt != "" {
		head += "Onward-Receipt: " + receipt + "\n"
	}
	_, err = fmt.Fprintf(out, "%s\n%s\n", head, strings.TrimSpace(string(text)))
	if answer.StatusCode >= http.StatusBadRequest {
		return errors.New(answer.Status)
	}
	return err
}
