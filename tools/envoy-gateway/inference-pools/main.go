// An extension server that has Envoy Gateway send requests to InferencePools, in a rehearsal alone.
//
// It stands for that of Envoy AI Gateway, which can't be had as a Go module. What the real one does for an HTTPRoute
// with InferencePools is documented at https://aigateway.envoyproxy.io/docs/capabilities/inference/; unlike it, this one
// takes several pools in one rule, as Istio does.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"net"
	"slices"

	"github.com/envoyproxy/gateway/proto/extension"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

const (
	namespace   = "llmd-oke.inference-pools" // of the metadata that says which pools a cluster has
	destination = "x-gateway-destination-endpoint"
	hcmName     = "envoy.filters.network.http_connection_manager"
	longest     = 1000 // seconds, as in the Envoy of llm-d's standalone chart
)

// inferencePool is what matters here of an InferencePool v1.
type inferencePool struct {
	Metadata struct{ Name, Namespace string }
	Spec     struct {
		EndpointPickerRef struct {
			Name string
			Port struct{ Number uint32 }
		}
	}
}

// key tells pools apart, and is all that the picker's cluster needs to know.
func (pool inferencePool) key() string {
	picker := pool.Spec.EndpointPickerRef
	return fmt.Sprintf("%s.%s.svc.cluster.local:%d", picker.Name, pool.Metadata.Namespace, picker.Port.Number)
}

func filterName(key string) string { return "envoy.filters.http.ext_proc/" + key }

func clusterName(key string) string { return "endpoint-picker/" + key }

// poolKeys are the pools among an extension's resources, in their order.
func poolKeys(resources []*extension.ExtensionResource) ([]string, error) {
	keys := []string{}
	for _, resource := range resources {
		var pool inferencePool
		if err := json.Unmarshal(resource.GetUnstructuredBytes(), &pool); err != nil {
			return nil, err
		}
		if pool.Spec.EndpointPickerRef.Name != "" {
			keys = append(keys, pool.key())
		}
	}
	return keys, nil
}

type server struct {
	extension.UnimplementedEnvoyGatewayExtensionServer
}

// PostClusterModify has a cluster send each request where the endpoint picker says.
func (server) PostClusterModify(_ context.Context, request *extension.PostClusterModifyRequest) (*extension.PostClusterModifyResponse, error) {
	keys, err := poolKeys(request.GetPostClusterContext().GetBackendExtensionResources())
	if err != nil || len(keys) == 0 {
		return &extension.PostClusterModifyResponse{Cluster: request.GetCluster()}, err
	}
	values := make([]any, len(keys))
	for i, key := range keys {
		values[i] = key
	}
	pools, err := structpb.NewStruct(map[string]any{"pools": values})
	if err != nil {
		return nil, err
	}
	cluster := request.GetCluster()
	return &extension.PostClusterModifyResponse{Cluster: &clusterv3.Cluster{
		Name:                 cluster.GetName(),
		Metadata:             &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{namespace: pools}},
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_ORIGINAL_DST},
		LbPolicy:             clusterv3.Cluster_CLUSTER_PROVIDED,
		ConnectTimeout:       durationpb.New(longest * 1e9),
		CircuitBreakers:      unlimited(),
		LbConfig: &clusterv3.Cluster_OriginalDstLbConfig_{OriginalDstLbConfig: &clusterv3.Cluster_OriginalDstLbConfig{
			UseHttpHeader: true, HttpHeaderName: destination,
		}},
	}}, nil
}

// PostRouteModify has the pickers of a route's pools asked, each for its share of the requests.
func (server) PostRouteModify(_ context.Context, request *extension.PostRouteModifyRequest) (*extension.PostRouteModifyResponse, error) {
	route := request.GetRoute()
	keys, err := poolKeys(request.GetPostRouteContext().GetExtensionResources())
	action := route.GetRoute()
	if err != nil || len(keys) == 0 || action == nil {
		return &extension.PostRouteModifyResponse{Route: route}, err
	}
	weighted := &routev3.WeightedCluster{}
	for _, key := range keys {
		weighted.Clusters = append(weighted.Clusters, &routev3.WeightedCluster_ClusterWeight{
			Name:   clusterOf(action),
			Weight: wrapperspb.UInt32(1),
			TypedPerFilterConfig: map[string]*anypb.Any{filterName(key): packed(&routev3.FilterConfig{Config: packed(&extprocv3.ExtProcPerRoute{
				Override: &extprocv3.ExtProcPerRoute_Overrides{Overrides: &extprocv3.ExtProcOverrides{}},
			})})},
		})
	}
	action.ClusterSpecifier = &routev3.RouteAction_WeightedClusters{WeightedClusters: weighted}
	return &extension.PostRouteModifyResponse{Route: route}, nil
}

func clusterOf(action *routev3.RouteAction) string {
	if clusters := action.GetWeightedClusters().GetClusters(); len(clusters) > 0 {
		return clusters[0].GetName()
	}
	return action.GetCluster()
}

// PostTranslateModify adds the pickers of all pools: a cluster of each, and a filter that routes switch on.
func (server) PostTranslateModify(_ context.Context, request *extension.PostTranslateModifyRequest) (*extension.PostTranslateModifyResponse, error) {
	keys := []string{}
	for _, cluster := range request.GetClusters() {
		for _, value := range cluster.GetMetadata().GetFilterMetadata()[namespace].GetFields()["pools"].GetListValue().GetValues() {
			keys = append(keys, value.GetStringValue())
		}
	}
	slices.Sort(keys)
	keys = slices.Compact(keys)
	clusters := request.GetClusters()
	for _, key := range keys {
		cluster, err := pickerCluster(key)
		if err != nil {
			return nil, err
		}
		clusters = append(clusters, cluster)
	}
	for _, listener := range request.GetListeners() {
		for _, chain := range append(listener.GetFilterChains(), listener.GetDefaultFilterChain()) {
			if err := addFilters(chain, keys); err != nil {
				return nil, err
			}
		}
	}
	return &extension.PostTranslateModifyResponse{
		Clusters: clusters, Secrets: request.GetSecrets(), Listeners: request.GetListeners(), Routes: request.GetRoutes(),
	}, nil
}

// addFilters puts a filter for each picker before the others of a chain, switched off where no route switches it on.
func addFilters(chain *listenerv3.FilterChain, keys []string) error {
	for _, filter := range chain.GetFilters() {
		if filter.GetName() != hcmName {
			continue
		}
		manager := &hcmv3.HttpConnectionManager{}
		if err := filter.GetTypedConfig().UnmarshalTo(manager); err != nil {
			return err
		}
		last := len(manager.HttpFilters) - 1
		before, router := manager.HttpFilters[:last:last], manager.HttpFilters[last]
		for _, key := range keys {
			before = append(before, &hcmv3.HttpFilter{
				Name:       filterName(key),
				Disabled:   true,
				ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: packed(asking(key))},
			})
		}
		manager.HttpFilters = append(before, router)
		filter.ConfigType = &listenerv3.Filter_TypedConfig{TypedConfig: packed(manager)}
	}
	return nil
}

// asking is how a picker is asked: for headers and body of request and answer. Without it a request fails.
func asking(key string) *extprocv3.ExternalProcessor {
	return &extprocv3.ExternalProcessor{
		GrpcService: &corev3.GrpcService{
			TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{ClusterName: clusterName(key)}},
			Timeout:         durationpb.New(longest * 1e9),
		},
		MessageTimeout: durationpb.New(longest * 1e9),
		ProcessingMode: &extprocv3.ProcessingMode{
			RequestHeaderMode:   extprocv3.ProcessingMode_SEND,
			ResponseHeaderMode:  extprocv3.ProcessingMode_SEND,
			RequestBodyMode:     extprocv3.ProcessingMode_FULL_DUPLEX_STREAMED,
			ResponseBodyMode:    extprocv3.ProcessingMode_FULL_DUPLEX_STREAMED,
			RequestTrailerMode:  extprocv3.ProcessingMode_SEND,
			ResponseTrailerMode: extprocv3.ProcessingMode_SEND,
		},
	}
}

// pickerCluster is the picker's Service; its certificate is of its own making, so that there is nothing to hold it to.
func pickerCluster(key string) (*clusterv3.Cluster, error) {
	var port uint32
	host, text, err := net.SplitHostPort(key)
	if err != nil {
		return nil, err
	}
	if _, err := fmt.Sscanf(text, "%d", &port); err != nil {
		return nil, err
	}
	address := &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address: host, PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: port},
	}}}
	endpoint := &endpointv3.LbEndpoint{HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{Address: address}}}
	options := &httpv3.HttpProtocolOptions{UpstreamProtocolOptions: &httpv3.HttpProtocolOptions_ExplicitHttpConfig_{
		ExplicitHttpConfig: &httpv3.HttpProtocolOptions_ExplicitHttpConfig{
			ProtocolConfig: &httpv3.HttpProtocolOptions_ExplicitHttpConfig_Http2ProtocolOptions{Http2ProtocolOptions: &corev3.Http2ProtocolOptions{}},
		},
	}}
	return &clusterv3.Cluster{
		Name:                          clusterName(key),
		ClusterDiscoveryType:          &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STRICT_DNS},
		DnsLookupFamily:               clusterv3.Cluster_V4_PREFERRED,
		ConnectTimeout:                durationpb.New(5e9),
		CircuitBreakers:               unlimited(),
		LoadAssignment:                &endpointv3.ClusterLoadAssignment{ClusterName: clusterName(key), Endpoints: []*endpointv3.LocalityLbEndpoints{{LbEndpoints: []*endpointv3.LbEndpoint{endpoint}}}},
		TypedExtensionProtocolOptions: map[string]*anypb.Any{"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": packed(options)},
		TransportSocket: &corev3.TransportSocket{
			Name: "envoy.transport_sockets.tls",
			ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: packed(&tlsv3.UpstreamTlsContext{
				CommonTlsContext: &tlsv3.CommonTlsContext{},
			})},
		},
	}, nil
}

func unlimited() *clusterv3.CircuitBreakers {
	most := wrapperspb.UInt32(40000)
	return &clusterv3.CircuitBreakers{Thresholds: []*clusterv3.CircuitBreakers_Thresholds{
		{MaxConnections: most, MaxPendingRequests: most, MaxRequests: most, MaxRetries: wrapperspb.UInt32(1024)},
	}}
}

func packed(message proto.Message) *anypb.Any {
	result, err := anypb.New(message)
	if err != nil {
		panic(err) // messages of these types can be written
	}
	return result
}

func main() {
	address := flag.String("listen", ":1063", "address to serve Envoy Gateway on")
	flag.Parse()
	listener, err := net.Listen("tcp", *address)
	if err != nil {
		log.Fatal(err)
	}
	service := grpc.NewServer(grpc.MaxRecvMsgSize(64 << 20))
	extension.RegisterEnvoyGatewayExtensionServer(service, server{})
	log.Fatal(service.Serve(listener))
}
