//! Authorizes users by the stored roles and bindings, as the RBAC of an API server. Logs each
//! decision.
//!
//! Subjects are service accounts and users; groups are not supported. `hack/e2e` reads the log
//! lines `right used: {...}` and `right missing: {...}`.

use std::sync::Arc;

use axum::http::Method;
use serde::Serialize;
use serde_json::{Value, json};

use crate::cluster::State;
use crate::object::{self, ObjectKey};
use crate::patch::APPLY;
use crate::request::{Options, ResourcePath};
use crate::status::{ApiError, GroupName};
use crate::store::Store;

const ROLES: &str = "rbac.authorization.k8s.io/roles";
const CLUSTER_ROLES: &str = "rbac.authorization.k8s.io/clusterroles";
const ROLE_BINDINGS: &str = "rbac.authorization.k8s.io/rolebindings";
const CLUSTER_ROLE_BINDINGS: &str = "rbac.authorization.k8s.io/clusterrolebindings";

/// The name of an impersonated user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User(pub String);

impl User {
    fn is(&self, subject: &Value) -> bool {
        let text = |field: &str| subject[field].as_str().unwrap_or_default();
        match text("kind") {
            "ServiceAccount" => {
                self.0 == format!("system:serviceaccount:{}:{}", text("namespace"), text("name"))
            }
            "User" => self.0 == text("name"),
            _ => false,
        }
    }
}

/// The attributes of a request that roles cover.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
struct Attributes<'a> {
    verb: &'a str,
    group: &'a str,
    resource: &'a str,
    subresource: &'a str,
    /// Empty for requests on all namespaces and on cluster-scoped kinds.
    namespace: &'a str,
    /// Empty for requests on collections.
    name: &'a str,
}

impl Attributes<'_> {
    fn path(&self) -> String {
        match self.subresource {
            "" => self.resource.to_owned(),
            subresource => format!("{}/{subresource}", self.resource),
        }
    }

    fn is_covered(&self, rule: &Value) -> bool {
        let has = |field: &str, fits: &dyn Fn(&str) -> bool| {
            object::strings(&rule[field]).into_iter().any(|given| given == "*" || fits(given))
        };
        let path = self.path();
        let any_of_subresource = format!("*/{}", self.subresource);
        let fits = |given: &str| {
            given == path || !self.subresource.is_empty() && given == any_of_subresource
        };
        let names = object::strings(&rule["resourceNames"]);
        has("verbs", &|verb| verb == self.verb)
            && has("apiGroups", &|group| group == self.group)
            && has("resources", &fits)
            && (names.is_empty() || names.contains(&self.name))
    }
}

/// Checks that a user has the rights for a request.
///
/// # Errors
/// 403 for a missing right.
pub fn check_request(
    state: &State,
    user: &User,
    method: &Method,
    path: &ResourcePath,
    options: &Options,
    media: &str,
) -> Result<(), ApiError> {
    // Other methods are refused later.
    let Some(verb) = verb(method, path, options) else { return Ok(()) };
    // A list or watch of one name needs the right for that name only.
    let selected = options.get("fieldSelector").strip_prefix("metadata.name=");
    let selected = selected.filter(|_| matches!(verb, "list" | "watch"));
    let attributes = Attributes {
        verb,
        group: &path.group,
        resource: &path.plural,
        subresource: path.subresource.as_deref().unwrap_or_default(),
        namespace: path.namespace.as_deref().unwrap_or_default(),
        name: path.name.as_deref().or(selected).unwrap_or_default(),
    };
    let check = |attributes: &Attributes<'_>| {
        let checked = check(&state.store, user, attributes);
        let (right, what) = (if checked.is_ok() { "used" } else { "missing" }, json!(attributes));
        tracing::info!("right {right}: {what}");
        checked
    };
    check(&attributes)?;
    // An apply of a missing object creates it.
    let key = ObjectKey::new(attributes.namespace, attributes.name);
    let kind = state.registry.find(&path.group, &path.version, &path.plural);
    let exists = kind.is_none_or(|kind| state.store.get(&kind.storage, &key).is_some());
    if media == APPLY && attributes.subresource.is_empty() && !exists {
        check(&Attributes { verb: "create", ..attributes })?;
    }
    Ok(())
}

/// The RBAC verb of a request.
fn verb(method: &Method, path: &ResourcePath, options: &Options) -> Option<&'static str> {
    Some(match (method.as_str(), path.name.is_some()) {
        ("GET" | "HEAD", _) if options.flag("watch") => "watch",
        ("GET" | "HEAD", true) => "get",
        ("GET" | "HEAD", false) => "list",
        ("POST", _) => "create",
        ("PUT", _) => "update",
        ("PATCH", _) => "patch",
        ("DELETE", true) => "delete",
        ("DELETE", false) => "deletecollection",
        _ => return None,
    })
}

/// Checks that a role bound to the user covers the attributes.
fn check(store: &Store, user: &User, attributes: &Attributes<'_>) -> Result<(), ApiError> {
    let everywhere = store.list(CLUSTER_ROLE_BINDINGS, None);
    let in_namespace = store.list(ROLE_BINDINGS, Some(attributes.namespace));
    let in_namespace = in_namespace.filter(|_| !attributes.namespace.is_empty());
    let mut bindings = everywhere.chain(in_namespace);
    let covers = |binding: &Arc<Value>| {
        let role = &binding["roleRef"];
        let mut roles = match role["kind"].as_str() {
            Some("Role") => store.list(ROLES, Some(attributes.namespace)),
            _ => store.list(CLUSTER_ROLES, Some("")),
        };
        list(binding, "subjects").iter().any(|subject| user.is(subject))
            && roles.any(|candidate| {
                role["name"] == object::name(candidate)
                    && list(candidate, "rules").iter().any(|rule| attributes.is_covered(rule))
            })
    };
    if bindings.any(covers) { Ok(()) } else { Err(refusal(user, attributes)) }
}

fn list<'a>(object: &'a Value, field: &str) -> &'a [Value] {
    object[field].as_array().map(Vec::as_slice).unwrap_or_default()
}

fn refusal(User(user): &User, attributes: &Attributes<'_>) -> ApiError {
    let Attributes { verb, group, namespace, name, .. } = attributes;
    let place = match *namespace {
        "" => "at the cluster scope".to_owned(),
        namespace => format!("in the namespace {namespace:?}"),
    };
    let path = attributes.path();
    ApiError::forbidden(
        GroupName { group, name: attributes.resource },
        name,
        &format!("User {user:?} cannot {verb} resource {path:?} in API group {group:?} {place}"),
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn store(objects: &[Value]) -> Store {
        let mut store = Store::new(100);
        for object in objects {
            let storage = match object["kind"].as_str().unwrap() {
                "Role" => ROLES,
                "ClusterRole" => CLUSTER_ROLES,
                "RoleBinding" => ROLE_BINDINGS,
                _ => CLUSTER_ROLE_BINDINGS,
            };
            store.put(storage, object.clone());
        }
        store
    }

    fn role(kind: &str, namespace: &str, rules: &Value) -> Value {
        json!({"kind": kind, "metadata": {"name": "r", "namespace": namespace}, "rules": rules})
    }

    fn binding(kind: &str, namespace: &str, role: &str, subject: &Value) -> Value {
        json!({"kind": kind, "metadata": {"name": "b", "namespace": namespace},
            "roleRef": {"kind": role, "name": "r"}, "subjects": [subject]})
    }

    fn account() -> (User, Value) {
        let user = User("system:serviceaccount:n:a".to_owned());
        (user, json!({"kind": "ServiceAccount", "namespace": "n", "name": "a"}))
    }

    const PODS: Attributes<'static> = Attributes {
        verb: "list",
        group: "",
        resource: "pods",
        subresource: "",
        namespace: "n",
        name: "",
    };

    #[test]
    fn requests_without_a_covering_rule_are_refused() {
        let rules = json!([
            {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "get"]},
            {"apiGroups": ["g"], "resources": ["things/status"], "verbs": ["patch"]},
            {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"], "resourceNames": ["one"]},
            {"apiGroups": ["all"], "resources": ["*"], "verbs": ["*"]},
        ]);
        let (user, subject) = account();
        let store = store(&[
            role("ClusterRole", "", &rules),
            binding("ClusterRoleBinding", "", "ClusterRole", &subject),
        ]);
        let allowed = |attributes: Attributes<'_>| check(&store, &user, &attributes).is_ok();
        assert!(allowed(PODS) && allowed(Attributes { namespace: "", ..PODS }));
        assert!(!allowed(Attributes { verb: "watch", ..PODS }));
        assert!(!allowed(Attributes { group: "g", ..PODS }));
        assert!(!allowed(Attributes { subresource: "status", ..PODS }));
        let status = Attributes {
            verb: "patch",
            group: "g",
            resource: "things",
            subresource: "status",
            ..PODS
        };
        assert!(allowed(status) && !allowed(Attributes { subresource: "", ..status }));
        let one = Attributes { verb: "get", resource: "configmaps", name: "one", ..PODS };
        assert!(allowed(one) && !allowed(Attributes { name: "two", ..one }));
        assert!(!allowed(Attributes { name: "", ..one }));
        assert!(allowed(Attributes { verb: "delete", group: "all", ..status }));
        let other_user = User("system:serviceaccount:n:b".to_owned());
        let error = check(&store, &other_user, &PODS).unwrap_err();
        assert_eq!(error.code, 403);
        assert_eq!(error.reason, "Forbidden");
        assert_eq!(
            error.message,
            r#"pods is forbidden: User "system:serviceaccount:n:b" cannot list resource "pods" in API group "" in the namespace "n""#
        );
    }

    #[test]
    fn role_binding_applies_to_its_namespace_only() {
        let rules = json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]);
        let (user, subject) = account();
        for kind in ["Role", "ClusterRole"] {
            let namespace = if kind == "Role" { "n" } else { "" };
            let store = store(&[
                role(kind, namespace, &rules),
                binding("RoleBinding", "n", kind, &subject),
            ]);
            assert!(check(&store, &user, &PODS).is_ok(), "{kind}");
            for namespace in ["", "other"] {
                let elsewhere = Attributes { namespace, ..PODS };
                assert!(check(&store, &user, &elsewhere).is_err(), "{kind} {namespace:?}");
            }
        }
    }

    #[test]
    fn subjects_are_service_accounts_and_users() {
        let (user, account) = account();
        for (subject, expected) in [
            (account, true),
            (json!({"kind": "User", "name": "system:serviceaccount:n:a"}), true),
            (json!({"kind": "User", "name": "a"}), false),
        ] {
            assert_eq!(user.is(&subject), expected, "{subject}");
        }
    }
}
