// The CRD API server of Kubernetes as a separate program, for hack/test-apiextensions.sh. It differs from the main.go of the
// library in two points. It serves the list of groups at /apis and their description at /openapi/v2, which kubectl needs and
// kube-aggregator serves in a cluster. It does not authenticate or authorize: every client is its administrator.
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
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	"k8s.io/apiserver/pkg/endpoints/openapi"
	genericapiserver "k8s.io/apiserver/pkg/server"
	webhook "k8s.io/apiserver/pkg/util/webhook"
)

func main() {
	listen := flag.Int("port", 0, "port on loopback")
	etcd := flag.String("etcd", "", "address of etcd")
	directory := flag.String("cert-dir", "", "directory for the generated certificate")
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
	// Admission that admits everything: without any, a patch panics while the definition is deleted.
	generic.AdmissionControl = admission.NewHandler()
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
