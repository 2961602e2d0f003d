//! The API that kube-rs uses, tested with kube-rs in the process of the server.
#![allow(clippy::unwrap_used, clippy::panic)]

mod harness;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, TryStreamExt};
use harness::{TestServer, WIDGET_CRD};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Node};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams,
    WatchEvent, WatchParams,
};
use kube::core::GroupVersionKind;
use kube::runtime::controller::Action;
use kube::runtime::events::{Event, EventType, Recorder};
use kube::runtime::wait::{await_condition, conditions};
use kube::runtime::{Controller, WatchStreamExt, watcher};
use kube::{Api, Client, Resource, ResourceExt};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::timeout;

const TIMEOUT: Duration = Duration::from_secs(20);

fn widget_resource() -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk("devcluster.example", "v1", "Widget"))
}

fn widgets(client: &Client) -> Api<DynamicObject> {
    Api::namespaced_with(client.clone(), "default", &widget_resource())
}

fn widget(name: &str, spec: Value) -> DynamicObject {
    let data = Value::from_iter([("spec", spec)]);
    DynamicObject::new(name, &widget_resource()).within("default").data(data)
}

/// A server with the widget definition.
async fn widget_cluster() -> (TestServer, Client) {
    let server = TestServer::start().await;
    let client = server.client();
    let definition: CustomResourceDefinition = serde_saphyr::from_str(WIDGET_CRD).unwrap();
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    definitions.create(&PostParams::default(), &definition).await.unwrap();
    let established = await_condition(
        definitions,
        "widgets.devcluster.example",
        conditions::is_crd_established(),
    );
    timeout(TIMEOUT, established).await.unwrap().unwrap();
    (server, client)
}

/// Code, reason and message of a refusal.
fn refusal<T: std::fmt::Debug>(result: Result<T, kube::Error>) -> (u16, String, String) {
    match result {
        Err(kube::Error::Api(status)) => {
            (status.code, status.reason.clone(), status.message.clone())
        }
        other => panic!("expected a refusal, got {other:?}"),
    }
}

/// Waits until the object with this uid is deleted.
async fn wait_deleted<K>(api: Api<K>, name: &str, uid: &str)
where
    K: Clone + std::fmt::Debug + Send + serde::de::DeserializeOwned + Resource + 'static,
{
    let deleted = await_condition(api, name, conditions::is_deleted(uid));
    timeout(TIMEOUT, deleted).await.unwrap().unwrap();
}

#[tokio::test]
async fn objects_are_created_read_replaced_and_deleted() {
    let (_server, client) = widget_cluster().await;
    let api = widgets(&client);
    let created =
        api.create(&PostParams::default(), &widget("a", json!({"size": 1}))).await.unwrap();
    assert_eq!(created.data["spec"], json!({"size": 1, "mode": "slow"}), "defaults are filled in");
    assert_eq!(created.metadata.generation, Some(1));
    assert!(
        created.uid().is_some()
            && created.resource_version().is_some()
            && created.creation_timestamp().is_some()
    );

    let mut newer = created.clone();
    newer.data["spec"]["size"] = 2.into();
    let stored = api.replace("a", &PostParams::default(), &newer).await.unwrap();
    assert_eq!(stored.metadata.generation, Some(2));
    let (code, reason, message) = refusal(api.replace("a", &PostParams::default(), &newer).await);
    assert_eq!((code, reason.as_str()), (409, "Conflict"));
    assert_eq!(
        message,
        "Operation cannot be fulfilled on widgets.devcluster.example \"a\": the object has been modified; please apply your changes to the latest version and try again"
    );
    let same = api.replace("a", &PostParams::default(), &stored).await.unwrap();
    assert_eq!(
        same.resource_version(),
        stored.resource_version(),
        "nothing changed, nothing was stored"
    );

    let mut blind = stored.clone();
    blind.metadata.resource_version = None;
    let (code, _, message) = refusal(api.replace("a", &PostParams::default(), &blind).await);
    assert_eq!(code, 422);
    assert!(
        message.contains(
            "metadata.resourceVersion: Invalid value: 0: must be specified for an update"
        ),
        "{message}"
    );

    let (code, reason, _) =
        refusal(api.create(&PostParams::default(), &widget("a", json!({"size": 1}))).await);
    assert_eq!((code, reason.as_str()), (409, "AlreadyExists"));
    assert!(api.delete("a", &DeleteParams::default()).await.unwrap().is_right(), "removed at once");
    let (code, _, message) = refusal(api.get("a").await);
    assert_eq!((code, message.as_str()), (404, "widgets.devcluster.example \"a\" not found"));
}

#[tokio::test]
async fn schema_violations_have_the_messages_of_the_api_server() {
    let (_server, client) = widget_cluster().await;
    let api = widgets(&client);
    let table = [
        (json!({}), "Widget.devcluster.example \"a\" is invalid: spec.size: Required value"),
        (
            json!({"size": "x"}),
            "Widget.devcluster.example \"a\" is invalid: spec.size: Invalid value: \"string\": spec.size in body must be of type integer: \"string\"",
        ),
        (
            json!({"size": 0}),
            "Widget.devcluster.example \"a\" is invalid: spec.size: Invalid value: 0: spec.size in body should be greater than or equal to 1",
        ),
        (
            json!({"size": 1, "mode": "x"}),
            "Widget.devcluster.example \"a\" is invalid: spec.mode: Unsupported value: \"x\": supported values: \"fast\", \"slow\"",
        ),
        (
            json!({"size": 1, "ports": [{"port": 1}, {"port": 1}]}),
            "Widget.devcluster.example \"a\" is invalid: spec.ports[1]: Duplicate value: {\"port\":1}",
        ),
    ];
    for (spec, expected) in table {
        let (code, reason, message) =
            refusal(api.create(&PostParams::default(), &widget("a", spec)).await);
        assert_eq!((code, reason.as_str(), message.as_str()), (422, "Invalid", expected));
    }
    let (code, _, message) =
        refusal(api.create(&PostParams::default(), &widget("Bad_Name", json!({"size": 1}))).await);
    assert_eq!(code, 422);
    assert!(
        message
            .contains("metadata.name: Invalid value: \"Bad_Name\": a lowercase RFC 1123 subdomain"),
        "{message}"
    );
    let strict = PostParams { field_manager: None, ..PostParams::default() };
    let stored = api.create(&strict, &widget("a", json!({"size": 1, "typo": true}))).await.unwrap();
    assert_eq!(stored.data["spec"].get("typo"), None, "unknown fields are pruned");
    let elsewhere: Api<DynamicObject> = Api::namespaced_with(client, "nowhere", &widget_resource());
    let (code, _, message) = refusal(
        elsewhere
            .create(
                &PostParams::default(),
                &DynamicObject::new("a", &widget_resource()).data(json!({"spec": {"size": 1}})),
            )
            .await,
    );
    assert_eq!((code, message.as_str()), (404, "namespaces \"nowhere\" not found"));
}

#[tokio::test]
async fn spec_and_status_are_written_by_their_own_endpoints() {
    let (_server, client) = widget_cluster().await;
    let api = widgets(&client);
    let mut wanted = widget("a", json!({"size": 1}));
    wanted.data["status"] = json!({"replicas": 9});
    let created = api.create(&PostParams::default(), &wanted).await.unwrap();
    assert_eq!(created.data.get("status"), None, "a create does not set the status");

    let both =
        json!({"spec": {"size": 7}, "metadata": {"labels": {"x": "y"}}, "status": {"replicas": 2}});
    let after = api.patch_status("a", &PatchParams::default(), &Patch::Merge(&both)).await.unwrap();
    assert_eq!(
        (&after.data["spec"]["size"], &after.data["status"]["replicas"]),
        (&json!(1), &json!(2))
    );
    assert_eq!((after.metadata.generation, after.labels().len()), (Some(1), 0));

    let after = api.patch("a", &PatchParams::default(), &Patch::Merge(&both)).await.unwrap();
    assert_eq!(
        (&after.data["spec"]["size"], &after.data["status"]["replicas"]),
        (&json!(7), &json!(2))
    );
    assert_eq!((after.metadata.generation, after.labels().len()), (Some(2), 1));
}

#[tokio::test]
async fn server_side_apply_merges_conflicts_and_removes() {
    let (_server, client) = widget_cluster().await;
    let api = widgets(&client);
    let apply = |manager: &str, spec: Value| {
        let (api, params) = (api.clone(), PatchParams::apply(manager));
        let config = json!({"apiVersion": "devcluster.example/v1", "kind": "Widget", "spec": spec});
        async move { api.patch("a", &params, &Patch::Apply(&config)).await }
    };
    apply("one", json!({"size": 1, "note": "n", "ports": [{"port": 1}, {"port": 2}]}))
        .await
        .unwrap();
    let (code, reason, message) = refusal(apply("two", json!({"size": 2})).await);
    assert_eq!((code, reason.as_str()), (409, "Conflict"));
    assert_eq!(message, "Apply failed with 1 conflict: conflict with \"one\": .spec.size");
    let merged = apply("two", json!({"size": 1, "ports": [{"port": 3}]})).await.unwrap();
    assert_eq!(merged.data["spec"]["ports"], json!([{"port": 1}, {"port": 2}, {"port": 3}]));
    let less = apply("one", json!({"size": 1, "ports": [{"port": 2}]})).await.unwrap();
    assert_eq!(
        less.data["spec"],
        json!({"size": 1, "mode": "slow", "ports": [{"port": 2}, {"port": 3}]})
    );
    let again = apply("one", json!({"size": 1, "ports": [{"port": 2}]})).await.unwrap();
    assert_eq!(
        again.resource_version(),
        less.resource_version(),
        "the same apply again stores nothing"
    );

    let status =
        json!({"apiVersion": "devcluster.example/v1", "kind": "Widget", "status": {"replicas": 3}});
    let after = api
        .patch_status("a", &PatchParams::apply("one").force(), &Patch::Apply(&status))
        .await
        .unwrap();
    assert_eq!(after.data["status"]["replicas"], 3);
    let managers: Vec<(String, Option<String>)> = after
        .managed_fields()
        .iter()
        .map(|entry| (entry.manager.clone().unwrap(), entry.subresource.clone()))
        .collect();
    assert!(
        managers.contains(&("one".into(), None))
            && managers.contains(&("one".into(), Some("status".into()))),
        "{managers:?}"
    );

    let (code, _, message) = refusal(apply("one", json!({"size": 1, "typo": 1})).await);
    assert_eq!(code, 500);
    assert!(message.ends_with(".spec.typo: field not declared in schema"), "{message}");
    let nameless = PatchParams::default();
    let result = api.patch("a", &nameless, &Patch::Merge(json!({"kind": "Gadget"}))).await;
    let (code, _, message) = refusal(result);
    assert_eq!(code, 422);
    assert!(message.ends_with(r#"kind: Invalid value: "Gadget": must be Widget"#), "{message}");
}

#[tokio::test]
async fn invalid_options_are_refused() {
    let (_server, client) = widget_cluster().await;
    let path = "/apis/devcluster.example/v1/namespaces/default/widgets";
    for (query, expected) in [
        ("dryRun=Some", r#"dryRun: Unsupported value: ["Some"]: supported values: "All""#),
        ("fieldValidation=Odd", r#"supported values: "", "Ignore", "Strict", "Warn""#),
    ] {
        let body = serde_json::to_vec(&widget("a", json!({"size": 1}))).unwrap();
        let request = axum::http::Request::post(format!("{path}?{query}")).body(body).unwrap();
        let (code, _, message) = refusal(client.request::<Value>(request).await);
        assert!(
            code == 422 && message.starts_with(r#"CreateOptions.meta.k8s.io "" is invalid: "#),
            "{message}"
        );
        assert!(message.ends_with(expected), "{message}");
    }
    for (query, code, expected) in [
        ("watch=1&sendInitialEvents=true", 422, "unless the WatchList feature gate is enabled"),
        ("resourceVersion=x", 400, r#"strconv.ParseUint: parsing "x": invalid syntax"#),
    ] {
        let request = axum::http::Request::get(format!("{path}?{query}")).body(Vec::new()).unwrap();
        let (status, _, message) = refusal(client.request::<Value>(request).await);
        assert_eq!(status, code, "{message}");
        assert!(message.ends_with(expected), "{message}");
    }
    let orphan = widgets(&client).delete("a", &DeleteParams::orphan()).await;
    let (code, _, message) = refusal(orphan);
    assert!(code == 422 && message.ends_with(r#"supported values: "Background""#), "{message}");
}

#[tokio::test]
async fn applied_deployment_gets_defaults_and_merges_containers() {
    let server = TestServer::start().await;
    let api: Api<Deployment> = Api::namespaced(server.client(), "default");
    let config = |image: &str| {
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "w"}, "spec": {
            "selector": {"matchLabels": {"app": "w"}},
            "template": {"metadata": {"labels": {"app": "w"}}, "spec": {"containers": [
                {"name": "c", "image": image, "ports": [{"containerPort": 80}], "env": [{"name": "A", "value": "1"}]}]}}}})
    };
    let params = PatchParams::apply("neptune");
    let created = api.patch("w", &params, &Patch::Apply(config("x:1"))).await.unwrap();
    assert_eq!(created.spec.as_ref().unwrap().replicas, Some(1));
    let again = api.patch("w", &params, &Patch::Apply(config("x:1"))).await.unwrap();
    assert_eq!(again.resource_version(), created.resource_version());
    let extra =
        json!({"spec": {"template": {"spec": {"containers": [{"name": "side", "image": "y"}]}}}});
    api.patch("w", &PatchParams::default(), &Patch::Strategic(extra)).await.unwrap();
    let newer = api.patch("w", &params, &Patch::Apply(config("x:2"))).await.unwrap();
    let containers = newer.spec.unwrap().template.spec.unwrap().containers;
    let images: Vec<_> = containers
        .iter()
        .map(|container| (container.name.as_str(), container.image.as_deref().unwrap()))
        .collect();
    assert_eq!(images, [("c", "x:2"), ("side", "y")]);
    assert_eq!(newer.metadata.generation, Some(3));

    let mut wrong = config("x:2");
    wrong["spec"]["selector"]["matchLabels"]["app"] = "other".into();
    let (code, _, message) = refusal(api.patch("w", &params, &Patch::Apply(wrong)).await);
    assert_eq!(code, 422);
    assert!(message.contains("`selector` does not match template `labels`"), "{message}");
}

#[tokio::test]
async fn pages_of_a_list_show_the_version_of_the_first() {
    let server = TestServer::start().await;
    let maps: Api<ConfigMap> = Api::default_namespaced(server.client());
    let map = |name: &str| -> ConfigMap {
        serde_json::from_value(json!({"metadata": {"name": name}})).unwrap()
    };
    for name in ["a", "b", "c", "d", "e"] {
        maps.create(&PostParams::default(), &map(name)).await.unwrap();
    }
    let page = ListParams::default().limit(2);
    let first = maps.list(&page).await.unwrap();
    maps.delete("c", &DeleteParams::default()).await.unwrap();
    maps.create(&PostParams::default(), &map("bb")).await.unwrap();
    let names = |list: &kube::core::ObjectList<ConfigMap>| {
        list.items.iter().map(ResourceExt::name_any).collect::<Vec<_>>()
    };
    let mut pages = vec![names(&first)];
    let mut token = first.metadata.continue_;
    while let Some(next) = token.filter(|token| !token.is_empty()) {
        let list = maps.list(&page.clone().continue_token(&next)).await.unwrap();
        assert_eq!(list.metadata.resource_version, first.metadata.resource_version);
        pages.push(names(&list));
        token = list.metadata.continue_;
    }
    assert_eq!(pages, [vec!["a", "b"], vec!["c", "d"], vec!["e"]]);
    let error = maps.list(&page.continue_token("1")).await.unwrap_err();
    assert!(error.to_string().contains("continue key is not valid"), "{error}");
}

#[tokio::test]
async fn watch_follows_the_label_selection() {
    let (_server, client) = widget_cluster().await;
    let api = widgets(&client);
    let start = api.list(&ListParams::default()).await.unwrap().metadata.resource_version.unwrap();
    let params = WatchParams::default().labels("team=a");
    let mut events = api.watch(&params, &start).await.unwrap().boxed();
    let mut wanted = widget("a", json!({"size": 1}));
    wanted.metadata.labels = Some(BTreeMap::from([("team".to_owned(), "a".to_owned())]));
    api.create(&PostParams::default(), &widget("other", json!({"size": 1}))).await.unwrap();
    api.create(&PostParams::default(), &wanted).await.unwrap();
    api.patch("a", &PatchParams::default(), &Patch::Merge(json!({"spec": {"size": 2}})))
        .await
        .unwrap();
    api.patch(
        "a",
        &PatchParams::default(),
        &Patch::Merge(json!({"metadata": {"labels": {"team": "b"}}})),
    )
    .await
    .unwrap();
    let mut seen = Vec::new();
    while seen.len() < 3 {
        match timeout(TIMEOUT, events.try_next()).await.unwrap().unwrap().unwrap() {
            WatchEvent::Added(object) => seen.push(format!("added {}", object.name_any())),
            WatchEvent::Modified(object) => {
                seen.push(format!("modified {}", object.data["spec"]["size"]));
            }
            // The state before the object left the selection.
            WatchEvent::Deleted(object) => {
                seen.push(format!(
                    "deleted {} of team {}",
                    object.name_any(),
                    object.labels()["team"]
                ));
            }
            WatchEvent::Bookmark(_) => {}
            WatchEvent::Error(status) => panic!("{status:?}"),
        }
    }
    assert_eq!(seen, ["added a", "modified 2", "deleted a of team a"]);
}

#[tokio::test]
async fn watch_from_compacted_version_expires() {
    let server = TestServer::start().await;
    let api: Api<ConfigMap> = Api::namespaced(server.client(), "default");
    let name = |position: usize| format!("m{position}");
    let filler = |value: usize| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name(value % 3)}, "data": {"v": value.to_string()}});
    for position in 0..4200 {
        let map = filler(position);
        let params = PatchParams::apply("filler");
        api.patch(&name(position % 3), &params, &Patch::Apply(map)).await.unwrap();
    }
    let mut events = api.watch(&WatchParams::default(), "1").await.unwrap().boxed();
    match timeout(TIMEOUT, events.try_next()).await.unwrap().unwrap().unwrap() {
        WatchEvent::Error(status) => {
            assert_eq!((status.code, status.reason.as_str()), (410, "Expired"));
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn finalizers_delay_deletion() {
    let (_server, client) = widget_cluster().await;
    let api = widgets(&client);
    let mut widget_with_finalizer = widget("a", json!({"size": 1}));
    widget_with_finalizer.metadata.finalizers = Some(vec!["devcluster.example/hold".to_owned()]);
    api.create(&PostParams::default(), &widget_with_finalizer).await.unwrap();
    let pending = api.delete("a", &DeleteParams::default()).await.unwrap().left().unwrap();
    assert!(pending.metadata.deletion_timestamp.is_some());
    let more =
        json!({"metadata": {"finalizers": ["devcluster.example/hold", "devcluster.example/more"]}});
    let (code, _, message) =
        refusal(api.patch("a", &PatchParams::default(), &Patch::Merge(&more)).await);
    assert_eq!(code, 422);
    assert!(message.contains("metadata.finalizers: Forbidden: no new finalizers can be added if the object is being deleted"), "{message}");
    api.patch(
        "a",
        &PatchParams::default(),
        &Patch::Merge(json!({"metadata": {"finalizers": null}})),
    )
    .await
    .unwrap();
    assert_eq!(refusal(api.get("a").await).0, 404);
}

#[tokio::test]
async fn dependents_are_deleted_with_their_owner() {
    let (_server, client) = widget_cluster().await;
    let api = widgets(&client);
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    let owner =
        api.create(&PostParams::default(), &widget("owner", json!({"size": 1}))).await.unwrap();
    let mut map = ConfigMap::default();
    map.metadata.name = Some("owned".to_owned());
    map.metadata.owner_references =
        Some(vec![owner.controller_owner_ref(&widget_resource()).unwrap()]);
    let created = maps.create(&PostParams::default(), &map).await.unwrap();
    api.delete("owner", &DeleteParams::background()).await.unwrap();
    wait_deleted(api.clone(), "owner", &owner.uid().unwrap()).await;
    wait_deleted(maps.clone(), "owned", &created.uid().unwrap()).await;
}

#[tokio::test]
async fn deleted_namespace_deletes_its_content() {
    let (_server, client) = widget_cluster().await;
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let space: Namespace = serde_json::from_value(json!({"metadata": {"name": "n"}})).unwrap();
    let space = namespaces.create(&PostParams::default(), &space).await.unwrap();
    let api: Api<DynamicObject> = Api::namespaced_with(client, "n", &widget_resource());
    let mut widget_with_finalizer =
        DynamicObject::new("a", &widget_resource()).data(json!({"spec": {"size": 1}}));
    widget_with_finalizer.metadata.finalizers = Some(vec!["devcluster.example/hold".to_owned()]);
    api.create(&PostParams::default(), &widget_with_finalizer).await.unwrap();
    namespaces.delete("n", &DeleteParams::default()).await.unwrap();
    let late = DynamicObject::new("b", &widget_resource()).data(json!({"spec": {"size": 1}}));
    let (code, reason, message) = refusal(api.create(&PostParams::default(), &late).await);
    assert_eq!((code, reason.as_str()), (403, "Forbidden"));
    assert!(message.contains("because it is being terminated"), "{message}");
    api.patch(
        "a",
        &PatchParams::default(),
        &Patch::Merge(json!({"metadata": {"finalizers": null}})),
    )
    .await
    .unwrap();
    wait_deleted(namespaces, "n", &space.uid().unwrap()).await;
    assert_eq!(refusal(api.get("a").await).0, 404);
}

#[tokio::test]
async fn deleted_definition_deletes_its_objects() {
    let (_server, client) = widget_cluster().await;
    let api = widgets(&client);
    api.create(&PostParams::default(), &widget("a", json!({"size": 1}))).await.unwrap();
    let start = api.list(&ListParams::default()).await.unwrap().metadata.resource_version.unwrap();
    let mut events = api.watch(&WatchParams::default(), &start).await.unwrap().boxed();
    let definitions: Api<CustomResourceDefinition> = Api::all(client);
    definitions.delete("widgets.devcluster.example", &DeleteParams::default()).await.unwrap();
    let event = timeout(TIMEOUT, events.try_next()).await.unwrap().unwrap().unwrap();
    assert!(matches!(event, WatchEvent::Deleted(_)), "{event:?}");
    assert!(
        timeout(TIMEOUT, events.try_next()).await.unwrap().unwrap().is_none(),
        "the watch finishes"
    );
    assert_eq!(refusal(api.get("a").await).0, 404);
}

#[tokio::test]
async fn definition_with_a_last_object_refuses_new_ones_until_it_is_gone() {
    let (_server, client) = widget_cluster().await;
    let api = widgets(&client);
    let mut last = widget("last", json!({"size": 1}));
    last.metadata.finalizers = Some(vec!["devcluster.example/hold".to_owned()]);
    api.create(&PostParams::default(), &last).await.unwrap();
    let start = api.list(&ListParams::default()).await.unwrap().metadata.resource_version.unwrap();
    let mut events = api.watch(&WatchParams::default(), &start).await.unwrap().boxed();
    let mut event = async || timeout(TIMEOUT, events.try_next()).await.unwrap().unwrap();
    let definitions: Api<CustomResourceDefinition> = Api::all(client);
    definitions.delete("widgets.devcluster.example", &DeleteParams::default()).await.unwrap();
    let marked = event().await;
    assert!(
        matches!(&marked, Some(WatchEvent::Modified(it)) if it.metadata.deletion_timestamp.is_some())
    );

    let (code, reason, message) =
        refusal(api.create(&PostParams::default(), &widget("late", json!({"size": 1}))).await);
    assert_eq!((code, reason.as_str()), (403, "Forbidden"));
    assert!(
        message.ends_with("create not allowed while custom resource definition is terminating")
    );
    let definition = definitions.get("widgets.devcluster.example").await.unwrap();
    let conditions = definition.status.unwrap().conditions.unwrap();
    assert_eq!(conditions.last().unwrap().reason.as_deref(), Some("InstanceDeletionInProgress"));

    let free = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    api.patch("last", &PatchParams::default(), &free).await.unwrap();
    assert!(matches!(event().await, Some(WatchEvent::Deleted(_))), "without a modification before");
    assert!(event().await.is_none(), "the watch finishes");
    assert_eq!(refusal(api.list(&ListParams::default()).await).0, 404);
}

#[tokio::test]
async fn replicas_of_a_scale_are_not_negative() {
    let (_server, client) = widget_cluster().await;
    let api = widgets(&client);
    for (replicas, expected) in [
        (-1_i64, "should be a non-negative integer"),
        (3_000_000_000, "should be less than or equal to 2147483647"),
    ] {
        let object = widget("a", json!({"size": 1, "replicas": replicas}));
        let (code, _, message) = refusal(api.create(&PostParams::default(), &object).await);
        assert_eq!(code, 422);
        assert!(
            message.contains(&format!(".spec.replicas: Invalid value: {replicas}: {expected}")),
            "{message}"
        );
    }
}

#[tokio::test]
async fn controller_reconciles_the_owner_of_a_changed_object() {
    let (_server, client) = widget_cluster().await;
    let api = widgets(&client);
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    let (sender, mut reconciled) = mpsc::unbounded_channel();
    let context = Arc::new((client.clone(), sender));
    let controller = Controller::new_with(api.clone(), watcher::Config::default(), widget_resource())
        .owns(maps.clone(), watcher::Config::default())
        .run(
            |widget: Arc<DynamicObject>, context: Arc<(Client, mpsc::UnboundedSender<()>)>| async move {
                let maps: Api<ConfigMap> = Api::namespaced(context.0.clone(), "default");
                let owner = widget.controller_owner_ref(&widget_resource()).unwrap();
                let map = json!({"apiVersion": "v1", "kind": "ConfigMap",
                    "metadata": {"name": widget.name_any(), "ownerReferences": [owner]}, "data": {"size": widget.data["spec"]["size"].to_string()}});
                maps.patch(&widget.name_any(), &PatchParams::apply("controller").force(), &Patch::Apply(map)).await?;
                context.1.send(()).ok();
                Ok::<_, kube::Error>(Action::await_change())
            },
            |_, _, _| Action::requeue(Duration::from_millis(50)),
            context,
        )
        .for_each(|_| futures::future::ready(()));
    let running = tokio::spawn(controller);
    api.create(&PostParams::default(), &widget("a", json!({"size": 4}))).await.unwrap();
    let holds = |wanted: &'static str| {
        await_condition(maps.clone(), "a", move |map: Option<&ConfigMap>| {
            map.and_then(|map| map.data.as_ref()?.get("size").cloned()).as_deref() == Some(wanted)
        })
    };
    timeout(TIMEOUT, holds("4")).await.unwrap().unwrap();
    maps.delete("a", &DeleteParams::default()).await.unwrap();
    timeout(TIMEOUT, reconciled.recv()).await.unwrap().unwrap();
    timeout(TIMEOUT, holds("4")).await.unwrap().unwrap();
    api.patch("a", &PatchParams::default(), &Patch::Merge(json!({"spec": {"size": 5}})))
        .await
        .unwrap();
    timeout(TIMEOUT, holds("5")).await.unwrap().unwrap();
    running.abort();
}

#[tokio::test]
async fn watcher_starts_with_existing_objects() {
    let server = TestServer::start().await;
    let api: Api<Node> = Api::all(server.client());
    let node: Node = serde_json::from_value(json!({"metadata": {"name": "edge0"}})).unwrap();
    api.create(&PostParams::default(), &node).await.unwrap();
    let mut names = watcher(api.clone(), watcher::Config::default())
        .default_backoff()
        .applied_objects()
        .map_ok(|node| node.name_any())
        .boxed();
    assert_eq!(timeout(TIMEOUT, names.try_next()).await.unwrap().unwrap().unwrap(), "edge0");
}

#[tokio::test]
async fn recorded_events_are_served_by_both_groups() {
    let (_server, client) = widget_cluster().await;
    let owner = widgets(&client)
        .create(&PostParams::default(), &widget("a", json!({"size": 1})))
        .await
        .unwrap();
    let recorder = Recorder::new(client.clone(), "tester".into());
    let event = Event {
        type_: EventType::Normal,
        reason: "Made".into(),
        note: Some("created".into()),
        action: "Making".into(),
        secondary: None,
    };
    let reference = owner.object_ref(&widget_resource());
    recorder.publish(&event, &reference).await.unwrap();
    recorder.publish(&event, &reference).await.unwrap();
    let core: Api<k8s_openapi::api::core::v1::Event> = Api::namespaced(client.clone(), "default");
    let seen = core.list(&ListParams::default().fields("involvedObject.name=a")).await.unwrap();
    assert_eq!(seen.items.len(), 1);
    let seen = &seen.items[0];
    assert_eq!(
        (seen.message.as_deref(), seen.reporting_component.as_deref()),
        (Some("created"), Some("tester"))
    );
    assert_eq!(seen.series.as_ref().unwrap().count, Some(2));
    let grouped: Api<k8s_openapi::api::events::v1::Event> = Api::namespaced(client, "default");
    let same = grouped.get(&seen.name_any()).await.unwrap();
    assert_eq!(same.note.as_deref(), Some("created"));
    assert_eq!(same.uid(), seen.uid());
}

#[tokio::test]
async fn dry_run_stores_nothing() {
    let (_server, client) = widget_cluster().await;
    let api = widgets(&client);
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    let answer = api.create(&dry, &widget("a", json!({"size": 1}))).await.unwrap();
    assert_eq!(answer.data["spec"]["mode"], "slow");
    assert_eq!(refusal(api.get("a").await).0, 404);
    assert_eq!(refusal(api.create(&dry, &widget("a", json!({}))).await).0, 422);
}

#[tokio::test]
async fn strategic_patch_merges_conditions_by_type() {
    let server = TestServer::start().await;
    let api: Api<Node> = Api::all(server.client());
    let node = json!({"metadata": {"name": "edge0"}, "status": {"conditions": [{"type": "DiskPressure", "status": "False"}]}});
    api.create(&PostParams::default(), &serde_json::from_value(node).unwrap()).await.unwrap();
    let ready = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
    let node =
        api.patch_status("edge0", &PatchParams::default(), &Patch::Strategic(ready)).await.unwrap();
    let kinds: Vec<String> = node
        .status
        .unwrap()
        .conditions
        .unwrap()
        .into_iter()
        .map(|condition| condition.type_)
        .collect();
    assert_eq!(kinds, ["DiskPressure", "Ready"]);
}
