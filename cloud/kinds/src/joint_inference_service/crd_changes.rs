//! Changes of a service for the tests that the CRD rejects none that the controller accepts: limits,
//! volumes, probes, and the join of two changes.

use serde_json::{Value, json};

/// Limits of numbers, of devices, and of what neither agents nor Pods support.
pub fn limits() -> [Value; 15] {
    [
        json!({"cpu": 1, "memory": 1_000_000}),
        json!({"cpu": 0}),
        json!({"memory": -1}),
        json!({"nvidia.com/gpu": 1, "neptune.io/camera": "64"}),
        json!({"notkubernetes.io/a": 1}),
        json!({"nvidia.com/gpu": 0}),
        json!({"nvidia.com/gpu": 65}),
        json!({"nvidia.com/gpu": "01"}),
        json!({"nvidia.com/gpu": "1k"}),
        json!({"gpu": 1}),
        json!({"nvidia.com/-a": 1}),
        json!({"Nvidia.com/gpu": 1}),
        json!({"node.kubernetes.io/a": 1}),
        json!({"ephemeral-storage": "1Gi"}),
        json!({"hugepages-2Mi": "4Mi"}),
    ]
}

/// Volumes, mounts and fields of a program in an image.
pub fn volumes() -> impl Iterator<Item = Value> {
    let image = |fields: Value| {
        let mut program = json!({"frameworkType": "container", "image": "a:1"});
        join(&mut program, &fields);
        program
    };
    let mount = |path: &str, name: &str, source: Value| {
        let mut volume = json!({ "name": name });
        join(&mut volume, &source);
        let mounts = json!([{"name": name, "mountPath": path}]);
        json!({"volumes": [volume], "volumeMounts": mounts})
    };
    let empty = || json!({"emptyDir": {}});
    let mut changes: Vec<_> = [
        "/a",
        "/a.b/c-d",
        "/dev/shm",
        "/tmp",
        "/etc/a",
        "/modelsx",
        "",
        "/",
        "a",
        "/a/",
        "//a",
        "/a/..",
        "/a:b",
        "/proc",
        "/sys/a",
        "/dev/a",
        "/models",
        "/datasets/a",
        "/etc/hosts",
    ]
    .map(|path| mount(path, "a", empty()))
    .into();
    changes.extend(["a", "a-b", "A", "-a", "a.b", ""].map(|name| mount("/a", name, empty())));
    for source in [
        json!({"emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}),
        json!({"emptyDir": {"medium": "Memory", "sizeLimit": 1_000_000}}),
        json!({"emptyDir": {"medium": "Memory", "sizeLimit": "0"}}),
        json!({"emptyDir": {"medium": "Memory"}}),
        json!({"emptyDir": {"sizeLimit": "1Gi"}}),
        json!({"hostPath": {"path": "/srv/a", "type": "Directory"}}),
        json!({"hostPath": {"path": "/srv/../a", "type": "File"}}),
        json!({"hostPath": {"path": "srv"}}),
        json!({"persistentVolumeClaim": {"claimName": "a"}}),
        json!({"emptyDir": {}, "hostPath": {"path": "/srv"}}),
        json!({}),
    ] {
        changes.push(mount("/a", "a", source));
    }
    changes.push(json!({"volumeMounts": [{"name": "a", "mountPath": "/a"}]}));
    for seconds in [-1, 0, 600, 601] {
        changes.push(json!({ "terminationGracePeriodSeconds": seconds }));
    }
    let of_image = [
        json!({"command": ["a"]}),
        json!({"args": ["a"]}),
        json!({"workingDir": "/a"}),
        json!({"workingDir": "a"}),
    ];
    changes.extend(of_image.iter().cloned().map(image));
    changes.extend(of_image);
    changes.into_iter()
}

/// Probes of the worker.
pub fn probes() -> impl Iterator<Item = Value> {
    let tcp = |fields: Value| {
        let mut probe = json!({"tcpSocket": {"port": 1}});
        join(&mut probe, &fields);
        probe
    };
    let mut probes: Vec<_> = [
        json!({}),
        json!({"exec": {"command": ["true"]}}),
        json!({"exec": {"command": []}}),
        json!({"exec": {"command": ["true"]}, "tcpSocket": {"port": 1}}),
        json!({"httpGet": {"port": 8000}}),
        json!({"httpGet": {"path": "/ready?full=1", "port": 8000, "scheme": "HTTPS"}}),
    ]
    .into();
    let paths = ["", "/", "/a b", "a", "/a\r\nHost: b", "/\u{e9}"];
    probes.extend(paths.map(|path| json!({"httpGet": {"path": path, "port": 8000}})));
    probes.extend([0, 1, 65535].map(|port| json!({"tcpSocket": {"port": port}})));
    let numbers = [
        "initialDelaySeconds",
        "periodSeconds",
        "timeoutSeconds",
        "failureThreshold",
        "successThreshold",
    ];
    for number in numbers {
        probes.extend([-1, 0, 1, 2, i32::MAX].map(|value| tcp(json!({ number: value }))));
    }
    let names = ["startupProbe", "livenessProbe", "readinessProbe"];
    probes.into_iter().flat_map(move |probe| names.map(|name| json!({ name: probe })))
}

/// References to Secrets and `ConfigMap`s, valid and not.
pub fn references() -> impl Iterator<Item = Value> {
    let from = |source: Value| json!({"env": [{"name": "A", "valueFrom": source}]});
    let names = ["a", "a.b", "A", "", "a b"];
    let keys = ["a", "a.B_c-d", ".a", "a..b", "", ".", "..", "..a", "a/b"];
    let mut changes: Vec<_> =
        names
            .map(|name| from(json!({"secretKeyRef": {"name": name, "key": "a"}})))
            .into_iter()
            .chain(keys.map(|key| from(json!({"configMapKeyRef": {"name": "a", "key": key}}))))
            .chain(names.map(|name| json!({"envFrom": [{"secretRef": {"name": name}}]})))
            .chain(["", "A_", "1", "a-"].map(
                |prefix| json!({"envFrom": [{"prefix": prefix, "configMapRef": {"name": "a"}}]}),
            ))
            .collect();
    let selector = json!({"name": "a", "key": "a"});
    changes.extend([
        from(json!({})),
        from(json!({"nodeLabel": "a", "optional": true})),
        from(json!({"nodeLabel": "a", "secretKeyRef": selector})),
        from(json!({"secretKeyRef": selector, "configMapKeyRef": selector})),
        from(json!({"secretKeyRef": selector, "optional": true})),
        from(json!({"secretKeyRef": {"name": "a", "key": "a", "optional": true}})),
        json!({"env": [{"name": "A", "value": "a", "valueFrom": {"secretKeyRef": selector}}]}),
        json!({"envFrom": [{}]}),
        json!({"envFrom": [{"secretRef": {"name": "a"}, "configMapRef": {"name": "a"}}]}),
        json!({"envFrom": vec![json!({"secretRef": {"name": "a"}}); 33]}),
    ]);
    let items = [
        json!([]),
        json!([{"key": "a", "path": "b"}]),
        json!([{"key": "a", "path": "b/c"}]),
        json!([{"key": "..", "path": "b"}]),
        json!([{"key": "a", "path": "b"}, {"key": "c", "path": "b"}]),
    ];
    for items in items {
        let mount = json!([{"name": "a", "mountPath": "/a"}]);
        let secret = json!({"name": "a", "secret": {"secretName": "a", "items": items}});
        changes.push(json!({"volumes": [secret], "volumeMounts": mount}));
        let config = json!({"name": "a", "configMap": {"name": "a", "items": items}});
        changes.push(json!({"volumes": [config], "volumeMounts": mount}));
    }
    changes.push(json!({"volumes": [
        {"name": "a", "secret": {"secretName": "a"}, "configMap": {"name": "a"}},
    ]}));
    changes.into_iter()
}

/// Joins two changes. A field that one of them removes is removed.
pub fn join(change: &mut Value, other: &Value) {
    match (change.as_object_mut(), other.as_object()) {
        (Some(fields), Some(others)) => {
            for (name, other) in others {
                join(fields.entry(name).or_insert(Value::Null), other);
            }
        }
        _ => *change = other.clone(),
    }
}

/// Values of `gateway` with clients.
pub fn clients() -> Vec<Value> {
    let key = |number: usize| format!("{number:064x}");
    let list = |count: usize| -> Value {
        (0..count).map(|n| json!({"name": format!("c{n}"), "keySha256": [key(n)]})).collect()
    };
    let one = |field: &str, value: Value| {
        let mut client = json!({"name": "a", "keySha256": [key(1)]});
        client[field] = value;
        json!({"clients": [client]})
    };
    let mut changes: Vec<Value> = [0, 1, 64, 65].map(|n| json!({"clients": list(n)})).into();
    for name in ["", "A", "a-b", "-a", "a-", "a.b", "x".repeat(63).as_str(), &"x".repeat(64)] {
        changes.push(one("name", name.into()));
    }
    for digest in ["", "npk_a", &key(10), &key(10).to_uppercase(), &key(1)[1..]] {
        changes.push(one("keySha256", json!([digest])));
    }
    for keys in [0, 1, 4, 5] {
        changes.push(one("keySha256", (0..keys).map(key).collect()));
    }
    for rate in [-1, 0, 1, 1_000_000, 1_000_001] {
        changes.push(one("requestsPerMinute", rate.into()));
    }
    for models in [json!([]), json!(["m"]), json!([""]), json!(vec!["m"; 33])] {
        changes.push(one("models", models));
    }
    let client = |name: &str, number| json!({"name": name, "keySha256": [key(number)]});
    changes.push(json!({"clients": [client("a", 1), client("a", 2)]}));
    changes.push(json!({"clients": [client("a", 1), client("b", 1)]}));
    changes
}
