package connect

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"strconv"
	"strings"
	"sync"
)

// Appender is a message that encodes itself: high-volume streams use it to skip encoding/json.
type Appender interface {
	// AppendJSON appends the message's JSON form to dst and returns the longer slice.
	AppendJSON(dst []byte) []byte
}

// appendMessage appends msg as JSON to dst.
func appendMessage(dst []byte, msg any) ([]byte, error) {
	if a, ok := msg.(Appender); ok {
		return a.AppendJSON(dst), nil
	}
	data, err := json.Marshal(msg)
	if err != nil {
		return dst, err
	}
	return append(dst, data...), nil
}

// decode fills msg from proto3 JSON. Unknown fields are ignored, and fields may carry their proto name (snake_case).
func decode[T any](data []byte) (*T, error) {
	msg := new(T)
	if len(bytes.TrimSpace(data)) == 0 {
		return msg, nil
	}
	if t := reflect.TypeFor[T](); hasLongNames(t) && bytes.IndexByte(data, '_') >= 0 {
		renamed, err := renameFields(data, t)
		if err != nil {
			return nil, malformed(err)
		}
		data = renamed
	}
	if err := json.Unmarshal(data, msg); err != nil {
		return nil, malformed(err)
	}
	return msg, nil
}

func malformed(err error) *Error {
	return Errorf(InvalidArgument, "malformed message: %s", err.Error())
}

var longNames sync.Map // reflect.Type → bool

// hasLongNames tells whether a field of t, or of a message inside it, has a name of several words. Only such a
// message can look different in snake_case; all others skip the renaming.
func hasLongNames(t reflect.Type) bool {
	if known, ok := longNames.Load(t); ok {
		return known.(bool)
	}
	found := false
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Map:
		found = hasLongNames(t.Elem())
	case reflect.Struct:
		longNames.Store(t, false) // ends the recursion of a type that contains itself
		for i := range t.NumField() {
			name := jsonName(t.Field(i))
			found = found || name != strings.ToLower(name) || hasLongNames(t.Field(i).Type)
		}
	}
	longNames.Store(t, found)
	return found
}

// renameFields rewrites the field names of the message t in data from snake_case to camelCase. Keys of maps stay.
func renameFields(data []byte, t reflect.Type) ([]byte, error) {
	switch t.Kind() {
	case reflect.Pointer:
		return renameFields(data, t.Elem())
	case reflect.Slice:
		if !hasLongNames(t.Elem()) {
			return data, nil
		}
		var items []json.RawMessage
		if err := json.Unmarshal(data, &items); err != nil || items == nil {
			return data, err
		}
		for i, item := range items {
			renamed, err := renameFields(item, t.Elem())
			if err != nil {
				return nil, err
			}
			items[i] = renamed
		}
		return json.Marshal(items)
	case reflect.Struct:
		return renameStruct(data, t)
	}
	return data, nil
}

func renameStruct(data []byte, t reflect.Type) ([]byte, error) {
	var object map[string]json.RawMessage
	if err := json.Unmarshal(data, &object); err != nil || object == nil {
		return data, err
	}
	for i := range t.NumField() {
		field := t.Field(i)
		name := jsonName(field)
		value, ok := object[name]
		if snake := snakeCase(name); !ok && snake != name {
			if value, ok = object[snake]; ok {
				delete(object, snake)
			}
		}
		if !ok {
			continue
		}
		renamed, err := renameFields(value, field.Type)
		if err != nil {
			return nil, err
		}
		object[name] = renamed
	}
	return json.Marshal(object)
}

func jsonName(field reflect.StructField) string {
	name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
	if name == "" {
		return field.Name
	}
	return name
}

func snakeCase(name string) string {
	var b strings.Builder
	for _, r := range name {
		if r >= 'A' && r <= 'Z' {
			b.WriteByte('_')
			r += 'a' - 'A'
		}
		b.WriteRune(r)
	}
	return b.String()
}

// Int64 is a proto3 JSON int64: written as a string, read from a string or a number.
type Int64 int64

// MarshalJSON implements json.Marshaler.
func (i Int64) MarshalJSON() ([]byte, error) {
	return strconv.AppendQuote(nil, strconv.FormatInt(int64(i), 10)), nil
}

// UnmarshalJSON implements json.Unmarshaler.
func (i *Int64) UnmarshalJSON(data []byte) error {
	text, ok := numberText(data)
	if !ok {
		return nil
	}
	value, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return errors.New("not a 64-bit integer: " + text)
	}
	*i = Int64(value)
	return nil
}

// Uint32 is a proto3 JSON uint32: written as a number, read from a number or a string.
type Uint32 uint32

// UnmarshalJSON implements json.Unmarshaler.
func (u *Uint32) UnmarshalJSON(data []byte) error {
	text, ok := numberText(data)
	if !ok {
		return nil
	}
	value, err := strconv.ParseUint(text, 10, 32)
	if err != nil {
		return errors.New("not an unsigned 32-bit integer: " + text)
	}
	*u = Uint32(value)
	return nil
}

// numberText returns the digits of a JSON number or of a string that holds one; false for null.
func numberText(data []byte) (string, bool) {
	text := string(data)
	if text == "null" {
		return "", false
	}
	if len(text) >= 2 && text[0] == '"' && text[len(text)-1] == '"' {
		text = text[1 : len(text)-1]
	}
	return text, true
}
