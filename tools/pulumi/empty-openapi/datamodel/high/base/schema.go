// Package base has the types of schemas.
package base

import (
	"errors"

	"github.com/pb33f/libopenapi/orderedmap"
	"go.yaml.in/yaml/v4"
)

// Schema is a schema of OpenAPI.
type Schema struct {
	Type                 []string
	AllOf, OneOf, AnyOf  []*SchemaProxy
	Discriminator        *Discriminator
	Properties           *orderedmap.Map[string, *SchemaProxy]
	AdditionalProperties *DynamicValue[*SchemaProxy, bool]
	Items                *DynamicValue[*SchemaProxy, bool]
	Required             []string
	Enum                 []*yaml.Node
	Default              *yaml.Node
	Extensions           *orderedmap.Map[string, *yaml.Node]
	Description          string
	Format               string
	Pattern              string
	Nullable, ReadOnly   *bool
	MinLength, MaxLength *int64
	Minimum, Maximum     *float64
	MultipleOf           *float64
}

// GoLow returns no digest.
func (*Schema) GoLow() *Digest { return nil }

// MarshalJSONInline refuses.
func (*Schema) MarshalJSONInline() ([]byte, error) { return nil, errors.New("there is no schema") }

// Digest stands for what a schema is told apart by.
type Digest struct{}

// Hash is always 0.
func (*Digest) Hash() uint64 { return 0 }

// SchemaProxy stands for a schema.
type SchemaProxy struct{}

// Schema returns none.
func (*SchemaProxy) Schema() *Schema { return nil }

// GetReference returns none.
func (*SchemaProxy) GetReference() string { return "" }

// Discriminator tells the variants of a schema apart.
type Discriminator struct {
	PropertyName string
	Mapping      *orderedmap.Map[string, string]
}

// DynamicValue is one of two.
type DynamicValue[A, B any] struct {
	A A
	B B
}

// IsA says that it is the first.
func (*DynamicValue[A, B]) IsA() bool { return true }
