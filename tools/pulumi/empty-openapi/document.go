// Package libopenapi has the types of github.com/pb33f/libopenapi that `pulumi cloud` is written with, and reads no
// document: no rehearsal calls that command, and the library takes a third of the time that Pulumi takes to build.
package libopenapi

import (
	"errors"

	v3 "github.com/pb33f/libopenapi/datamodel/high/v3"
)

// Document is one that was read: there is none.
type Document interface {
	BuildV3Model() (*DocumentModel, error)
}

// DocumentModel is the model of a document.
type DocumentModel struct {
	Model v3.Document
}

// NewDocument refuses to read anything.
func NewDocument([]byte) (Document, error) {
	return nil, errors.New("this pulumi was built for rehearsals, without `pulumi cloud`")
}
