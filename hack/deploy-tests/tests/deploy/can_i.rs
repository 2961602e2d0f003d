//! Answers `kubectl auth can-i` from objects, by the documented rule of Kubernetes' RBAC: a request is
//! allowed if a rule of a role that is bound to its user covers it. Pure.

use serde_json::Value;

/// A question: may this user do this?
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    /// `system:serviceaccount:NAMESPACE:NAME`, or the name of a person.
    pub user: String,
    pub verb: String,
    /// `RESOURCE.GROUP`; without a group that of the core.
    pub resource: String,
    pub subresource: Option<String>,
    /// `None` for any name.
    pub name: Option<String>,
    /// `None` for all namespaces.
    pub namespace: Option<String>,
}

impl Question {
    /// The arguments of `kubectl auth can-i`.
    pub fn arguments(&self) -> Vec<String> {
        let named = self.name.as_ref().map(|name| format!("/{name}")).unwrap_or_default();
        let mut arguments = ["auth", "can-i", &self.verb].map(str::to_owned).to_vec();
        arguments.extend([format!("{}{named}", self.resource), format!("--as={}", self.user)]);
        arguments.extend(self.subresource.as_ref().map(|it| format!("--subresource={it}")));
        arguments.push(match &self.namespace {
            Some(namespace) => format!("--namespace={namespace}"),
            None => "--all-namespaces".to_owned(),
        });
        arguments
    }
}

/// Whether the roles and bindings among the objects allow it.
pub fn can_i(objects: &[Value], question: &Question) -> bool {
    let of_kind = |kind| objects.iter().filter(move |object| object["kind"] == kind);
    let in_namespace = of_kind("RoleBinding").filter(|binding| {
        question.namespace.as_deref() == binding["metadata"]["namespace"].as_str()
    });
    let mut bindings = of_kind("ClusterRoleBinding").chain(in_namespace);
    bindings.any(|binding| {
        let reference = &binding["roleRef"];
        let is_role = |role: &&Value| {
            role["kind"] == reference["kind"]
                && role["metadata"]["name"] == reference["name"]
                && (role["kind"] == "ClusterRole"
                    || role["metadata"]["namespace"] == binding["metadata"]["namespace"])
        };
        let subjects = binding["subjects"].as_array().into_iter().flatten();
        subjects.into_iter().any(|subject| is_subject(subject, &question.user))
            && objects
                .iter()
                .filter(is_role)
                .any(|role| rules(objects, role).iter().any(|rule| covers(rule, question)))
    })
}

fn is_subject(subject: &Value, user: &str) -> bool {
    let text = |field: &str| subject[field].as_str().unwrap_or_default();
    match text("kind") {
        "ServiceAccount" => {
            user == format!("system:serviceaccount:{}:{}", text("namespace"), text("name"))
        }
        "Group" => {
            let of_accounts = user.strip_prefix("system:serviceaccount:").is_some_and(|rest| {
                let namespace = rest.split(':').next().unwrap_or_default();
                let own = format!("system:serviceaccounts:{namespace}");
                [own.as_str(), "system:serviceaccounts"].contains(&text("name"))
            });
            of_accounts || text("name") == "system:authenticated"
        }
        _ => text("name") == user,
    }
}

/// The rules of a role, with those of the roles that it aggregates.
fn rules<'a>(objects: &'a [Value], role: &'a Value) -> Vec<&'a Value> {
    let own = role["rules"].as_array().into_iter().flatten();
    let selectors = role["aggregationRule"]["clusterRoleSelectors"].as_array();
    let selected = selectors.into_iter().flatten().flat_map(|selector| {
        let wanted = selector["matchLabels"].as_object().unwrap();
        objects.iter().filter(move |other| {
            let labels = &other["metadata"]["labels"];
            other["kind"] == "ClusterRole"
                && wanted.iter().all(|(name, value)| labels[name] == *value)
        })
    });
    own.chain(selected.flat_map(|other| other["rules"].as_array().unwrap())).collect()
}

fn covers(rule: &Value, question: &Question) -> bool {
    let has = |field: &str, wanted: &[&str]| {
        let mut given = rule[field].as_array().into_iter().flatten().filter_map(Value::as_str);
        given.any(|given| given == "*" || wanted.contains(&given))
    };
    let (resource, group) = question.resource.split_once('.').unwrap_or((&question.resource, ""));
    let resources = match &question.subresource {
        Some(sub) => [format!("{resource}/{sub}"), format!("*/{sub}")],
        None => [resource.to_owned(), resource.to_owned()],
    };
    let names = rule["resourceNames"].as_array().filter(|names| !names.is_empty());
    let is_named = names.is_none_or(|names| {
        question.name.as_ref().is_some_and(|name| names.contains(&name.as_str().into()))
    });
    has("verbs", &[&question.verb])
        && has("apiGroups", &[group])
        && has("resources", &[&resources[0], &resources[1]])
        && is_named
}

#[test]
fn answers_follow_the_rules_of_kubernetes() {
    use serde_json::json;

    let role = |kind: &str, namespace: &str, name: &str, rule: Value| json!({"kind": kind, "metadata": {"name": name, "namespace": namespace}, "rules": [rule]});
    let binding = |kind: &str, namespace: &str, role: (&str, &str), subject: Value| {
        json!({"kind": kind, "metadata": {"name": "b", "namespace": namespace},
            "roleRef": {"kind": role.0, "name": role.1}, "subjects": [subject]})
    };
    let account = json!({"kind": "ServiceAccount", "namespace": "n", "name": "a"});
    let person = json!({"kind": "User", "name": "ann"});
    let mut part = role(
        "ClusterRole",
        "",
        "part",
        json!({"apiGroups": ["g"], "resources": ["things", "things/status"], "verbs": ["get"]}),
    );
    part["metadata"]["labels"] = json!({"to-view": "true"});
    let objects = [
        role(
            "Role",
            "n",
            "one",
            json!({"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"], "resourceNames": ["s"]}),
        ),
        binding("RoleBinding", "n", ("Role", "one"), account.clone()),
        role(
            "ClusterRole",
            "",
            "all",
            json!({"apiGroups": ["g"], "resources": ["*"], "verbs": ["*"]}),
        ),
        binding("ClusterRoleBinding", "", ("ClusterRole", "all"), account),
        part,
        json!({"kind": "ClusterRole", "metadata": {"name": "view"},
            "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"to-view": "true"}}]}}),
        binding("RoleBinding", "shop", ("ClusterRole", "view"), person),
    ];
    let (account, ann) = ("system:serviceaccount:n:a", "ann");
    for (user, verb, resource, namespace, expected) in [
        (account, "get", "secrets/s", "n", true),
        (account, "get", "secrets/t", "n", false),
        (account, "get", "secrets", "n", false),
        (account, "get", "secrets/s", "m", false),
        (account, "get", "secrets/s", "", false),
        (account, "delete", "things.g", "", true),
        (account, "delete", "things.h", "", false),
        ("system:serviceaccount:m:a", "delete", "things.g", "", false),
        (ann, "get", "things.g", "shop", true),
        (ann, "get", "things.g:status", "shop", true),
        (ann, "get", "things.g:scale", "shop", false),
        (ann, "patch", "things.g", "shop", false),
        (ann, "get", "things.g", "other", false),
    ] {
        let (resource, name) =
            resource.split_once('/').map_or((resource, None), |(r, n)| (r, Some(n)));
        let (resource, sub) =
            resource.split_once(':').map_or((resource, None), |(r, s)| (r, Some(s)));
        let question = Question {
            user: user.to_owned(),
            verb: verb.to_owned(),
            resource: resource.to_owned(),
            subresource: sub.map(str::to_owned),
            name: name.map(str::to_owned),
            namespace: Some(namespace.to_owned()).filter(|it| !it.is_empty()),
        };
        assert_eq!(can_i(&objects, &question), expected, "{question:?}");
    }
}
