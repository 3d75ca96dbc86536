// Package v3 has the types of a document of OpenAPI 3.
package v3

import (
	"github.com/pb33f/libopenapi/datamodel/high/base"
	"github.com/pb33f/libopenapi/orderedmap"
	"go.yaml.in/yaml/v4"
)

// Document is a document.
type Document struct {
	Info       *Info
	Components *Components
	Paths      *Paths
}

// Info says what a document is about.
type Info struct{ Version string }

// Components are what a document refers to.
type Components struct {
	Schemas *orderedmap.Map[string, *base.SchemaProxy]
}

// Paths are the paths of an API.
type Paths struct {
	PathItems *orderedmap.Map[string, *PathItem]
}

// PathItem has the operations of a path.
type PathItem struct {
	Get, Post, Put, Delete, Patch, Head *Operation
}

// Operation is an operation of an API.
type Operation struct {
	OperationId, Summary, Description string
	Tags                              []string
	Parameters                        []*Parameter
	RequestBody                       *RequestBody
	Responses                         *Responses
	Extensions                        *orderedmap.Map[string, *yaml.Node]
	Deprecated                        *bool
}

// Parameter is a parameter of an operation.
type Parameter struct {
	Name, In, Description string
	Required              *bool
	Schema                *base.SchemaProxy
}

// RequestBody is the body that an operation takes.
type RequestBody struct {
	Content *orderedmap.Map[string, *MediaType]
}

// MediaType is a body of one type.
type MediaType struct{ Schema *base.SchemaProxy }

// Responses are an operation's answers.
type Responses struct {
	Codes   *orderedmap.Map[string, *Response]
	Default *Response
}

// Response is an answer.
type Response struct {
	Description string
	Content     *orderedmap.Map[string, *MediaType]
}
