// Command epp is llm-d's endpoint picker with the prefill/decode plugins and without those that need
// cgo (tokenizers, precise prefix cache), so that it builds anywhere Go does. It is the rehearsal's
// stand-in for the image ghcr.io/llm-d/llm-d-inference-scheduler of the same version.
package main

import (
	"os"

	prerequest "github.com/llm-d/llm-d-inference-scheduler/pkg/plugins/pre-request"

	"github.com/llm-d/llm-d-inference-scheduler/pkg/metrics"
	"github.com/llm-d/llm-d-inference-scheduler/pkg/plugins/filter"
	"github.com/llm-d/llm-d-inference-scheduler/pkg/plugins/profile"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/gateway-api-inference-extension/cmd/epp/runner"
	"sigs.k8s.io/gateway-api-inference-extension/pkg/epp/framework/interface/plugin"
)

func registerPlugins() {
	plugin.Register(filter.ByLabelType, filter.ByLabelFactory)
	plugin.Register(filter.ByLabelSelectorType, filter.ByLabelSelectorFactory)
	plugin.Register(filter.DecodeRoleType, filter.DecodeRoleFactory)
	plugin.Register(filter.PrefillRoleType, filter.PrefillRoleFactory)
	plugin.Register(prerequest.DisaggHeadersHandlerType, prerequest.DisaggHeadersHandlerFactory)
	plugin.Register(profile.DisaggProfileHandlerType, profile.DisaggProfileHandlerFactory)
	plugin.Register(profile.PrefixBasedPDDeciderPluginType, profile.PrefixBasedPDDeciderPluginFactory)
	plugin.Register(profile.AlwaysDisaggPDDeciderPluginType, profile.AlwaysDisaggPDDeciderPluginFactory)
}

func main() {
	registerPlugins()
	if err := runner.NewRunner().WithCustomCollectors(metrics.GetCollectors()...).Run(ctrl.SetupSignalHandler()); err != nil {
		os.Exit(1)
	}
}
