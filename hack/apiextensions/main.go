// The CRD API server of Kubernetes as a program by itself, for hack/test-apiextensions.sh. It differs from that library's own
// main.go in two things: it lists its groups at /apis and describes them at /openapi/v2, which kube-aggregator does in a cluster and
// kubectl asks for; and it asks no other API server who may do what: whoever reaches the address is its administrator.
package main

import (
	"flag"
	"log"
	"net"
	"os"

	"k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apiextensions-apiserver/pkg/cmd/server/options"
	generated "k8s.io/apiextensions-apiserver/pkg/generated/openapi"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	"k8s.io/apiserver/pkg/endpoints/openapi"
	genericapiserver "k8s.io/apiserver/pkg/server"
	webhook "k8s.io/apiserver/pkg/util/webhook"
)

func main() {
	listen := flag.Int("port", 0, "port on loopback")
	etcd := flag.String("etcd", "", "address of etcd")
	directory := flag.String("cert-dir", "", "where the certificate goes that it makes")
	flag.Parse()

	o := options.NewCustomResourceDefinitionsServerOptions(os.Stdout, os.Stderr)
	r := o.RecommendedOptions
	r.Authentication, r.Authorization, r.Admission, r.CoreAPI = nil, nil, nil, nil
	r.Features.EnablePriorityAndFairness = false
	r.Etcd.StorageConfig.Transport.ServerList = []string{*etcd}
	r.SecureServing.BindAddress = net.IPv4(127, 0, 0, 1)
	r.SecureServing.BindPort = *listen
	r.SecureServing.ServerCert.CertDirectory = *directory
	must(r.SecureServing.MaybeDefaultWithSelfSignedCerts("localhost", nil, []net.IP{r.SecureServing.BindAddress}))
	must(o.Complete())

	generic := genericapiserver.NewRecommendedConfig(apiserver.Codecs)
	must(o.ServerRunOptions.ApplyTo(&generic.Config))
	must(r.ApplyTo(generic))
	must(o.APIEnablement.ApplyTo(&generic.Config, apiserver.DefaultAPIResourceConfigSource(), apiserver.Scheme))
	names := openapi.NewDefinitionNamer(apiserver.Scheme)
	generic.OpenAPIConfig = genericapiserver.DefaultOpenAPIConfig(generated.GetOpenAPIDefinitions, names)
	generic.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(generated.GetOpenAPIDefinitions, names)
	config := &apiserver.Config{
		GenericConfig: generic,
		ExtraConfig: apiserver.ExtraConfig{
			CRDRESTOptionsGetter: options.NewCRDRESTOptionsGetter(*r.Etcd, generic.ResourceTransformers, generic.StorageObjectCountTracker),
			ServiceResolver:      webhook.NewDefaultServiceResolver(),
			AuthResolverWrapper:  webhook.NewDefaultAuthenticationInfoResolverWrapper(nil, nil, generic.LoopbackClientConfig, nil),
		},
	}
	server, err := config.Complete().New(genericapiserver.NewEmptyDelegate())
	must(err)
	s := server.GenericAPIServer
	groups := aggregated.WrapAggregatedDiscoveryToHandler(s.DiscoveryGroupManager, s.AggregatedDiscoveryGroupManager, s.PeerAggregatedDiscoveryManager)
	s.Handler.GoRestfulContainer.Add(groups.GenerateWebService("/apis", metav1.APIGroupList{}))
	must(s.PrepareRun().RunWithContext(genericapiserver.SetupSignalContext()))
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
