"""The environment of workers."""

import pytest
from neptune_worker.settings import Address, SettingError, Settings


def test_environment_of_the_agent_is_read():
    settings = Settings(
        {
            "NAMESPACE": "team",
            "SERVICE_NAME": "demo",
            "WORKER_NAME": "demo-edge-1",
            "MODEL_URL": "/models/small/small.json",
            "DATASET_URL": "/datasets/d/d.csv",
            "PARAMETERS": '[{"key":"rate","value":"10"},{"key":"mode","value":""}]',
            "MQTT_URL": "mqtt://demo-edge-1:p%40ss%2f@127.0.0.1:1884",
            "WORKER_INFO_TOPIC": "site/workers/demo-edge-1/info",
            "WORKER_RELOAD_TOPIC": "site/workers/demo-edge-1/reload",
            "HEM_NAME": "IBT",
            "HEM_PARAMETERS": '[{"key":"threshold_img","value":"0.6"}]',
            "BIG_MODEL_URL": "http://demo-cloud.team.svc.cluster.local:5000",
        }
    )
    assert settings.parameters == {"rate": "10", "mode": ""}
    assert settings.broker == Address("127.0.0.1", 1884, "demo-edge-1", "p@ss/")
    assert settings.cloud == Address("demo-cloud.team.svc.cluster.local", 5000)
    assert settings.predict_path == "/demo/predict"
    assert settings.info_topic == "site/workers/demo-edge-1/info"
    assert (settings.rule, settings.bind) == ("IBT", None)


def test_empty_environment_is_a_local_worker():
    settings = Settings({"MQTT_URL": "", "HEM_NAME": ""})
    assert (settings.name, settings.service, settings.rule) == ("local", "local", "EdgeOnly")
    assert (settings.broker, settings.cloud, settings.bind, settings.model_path) == (None, None, None, None)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, None),
        ({"BIG_MODEL_URL": "http://10.0.0.1:20001"}, Address("10.0.0.1", 20001)),
        ({"BIG_MODEL_URL": "http://a"}, Address("a", 80)),
        ({"BIG_MODEL_URL": "http://[::1]:7"}, Address("::1", 7)),
    ],
)
def test_address_of_the_cloud_worker(variables, expected):
    assert Settings(variables).cloud == expected


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("MQTT_URL", "http://a"),
        ("MQTT_URL", "mqtt://"),
        ("MQTT_URL", "mqtt://a:99999"),
        ("BIG_MODEL_URL", "a:5000"),
        ("BIG_MODEL_BIND_PORT", "x"),
        ("PARAMETERS", "{"),
    ],
)
def test_invalid_variable_is_named(variable, value):
    with pytest.raises(SettingError, match=variable):
        Settings({variable: value})
